// conv2d
@group(0) @binding(0) var<storage, read> t_X: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> t_K: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> t_O: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> t_R: array<vec4<f32>>;
struct Push {
    d_X: vec4<i32>,
    d_K: vec4<i32>,
    d_O: vec4<i32>,
    d_R: vec4<i32>,
    p_GAIN: f32,
}
@group(0) @binding(4) var<uniform> u: Push;
@id(0) override s_LX: i32 = 1i;
@id(1) override s_LY: i32 = 1i;
@id(2) override s_LZ: i32 = 1i;
@id(3) override s_KH: i32 = 1i;
@id(4) override s_KW: i32 = 1i;
@id(5) override s_SY: i32 = 1i;
@id(6) override s_SX: i32 = 1i;
@id(7) override s_DY: i32 = 1i;
@id(8) override s_DX: i32 = 1i;
@id(9) override s_PT: i32 = 0i;
@id(10) override s_PL: i32 = 0i;
@id(11) override s_SPAN: i32 = 1i;
@id(12) override s_S0: i32 = 0i;
@id(13) override s_ICG: i32 = 4i;
@id(14) override s_OCG: i32 = 4i;
@id(15) override s_BIAS: bool = false;
@id(16) override s_LOW: f32 = (-1.0f);

fn k_at(p: vec4<i32>, d: vec4<i32>) -> i32 {
    return ((p.w * d.z + p.z) * d.y + p.y) * d.x + p.x;
}

fn k_in2(p: vec4<i32>, d: vec4<i32>) -> bool {
    return (u32(p.x) < u32(d.x)) && (u32(p.y) < u32(d.y));
}

fn k_z_X(p: vec4<i32>, d: vec4<i32>, last: u32) -> vec4<f32> {
    let v = t_X[min(u32(k_at(p, d)), last)];
    return select(vec4<f32>(), v, k_in2(p, d));
}

fn k_z_R(p: vec4<i32>, d: vec4<i32>, last: u32) -> vec4<f32> {
    let v = t_R[min(u32(k_at(p, d)), last)];
    return select(vec4<f32>(), v, k_in2(p, d));
}

fn f_epilogue(v1_v: vec4<f32>, v2_p: vec4<i32>) -> vec4<f32> {
    let p_GAIN = u.p_GAIN;
    let d_R = u.d_R;
    let last_R = u32(d_R.x * d_R.y * d_R.z * d_R.w - 1);
    var c_LOW = s_LOW;
    return max(v1_v * vec4<f32>(p_GAIN) + k_z_R(v2_p, d_R, last_R), vec4<f32>(c_LOW));
}

@compute @workgroup_size(s_LX, s_LY, s_LZ)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    let k_zero = i32(group.x >> 31u);
    let d_O = u.d_O + k_zero;
    var c_OCG = s_OCG;
    var c_ICG = s_ICG;
    var c_S0 = s_S0;
    let d_X = u.d_X + k_zero;
    var c_BIAS = s_BIAS;
    var c_KH = s_KH;
    var c_KW = s_KW;
    let d_K = u.d_K + k_zero;
    let last_K = u32(d_K.x * d_K.y * d_K.z * d_K.w - 1);
    var c_SY = s_SY;
    var c_DY = s_DY;
    var c_PT = s_PT;
    var c_SX = s_SX;
    var c_DX = s_DX;
    var c_PL = s_PL;
    var c_SPAN = s_SPAN;
    let last_X = u32(d_X.x * d_X.y * d_X.z * d_X.w - 1);
    if (all(id < vec3<u32>(vec3<i32>(d_O.x, d_O.y, d_O.z * d_O.w)))) {
        let z = i32(id.z);
        let v3_p = vec4<i32>(i32(id.x), i32(id.y), z % d_O.z, z / d_O.z);
        let v4_first: i32 = v3_p.z * 4i / c_OCG * c_ICG / 4i + c_S0;
        let v5_last: i32 = d_X.z - 1i;
        var v6_acc: vec4<f32> = vec4<f32>(0.0f);
        if (c_BIAS) {
            v6_acc = t_K[min(u32(k_at(vec4<i32>(0i, c_KH * c_KW, v3_p.z, 0i), d_K)), last_K)];
        }
        for (var v7_ky: i32 = 0i; v7_ky < c_KH; v7_ky += 1i) {
            let v8_y: i32 = v3_p.y * c_SY + v7_ky * c_DY - c_PT;
            for (var v9_kx: i32 = 0i; v9_kx < c_KW; v9_kx += 1i) {
                let v10_x: i32 = v3_p.x * c_SX + v9_kx * c_DX - c_PL;
                let v11_t: i32 = v7_ky * c_KW + v9_kx;
                for (var v12_s: i32 = 0i; v12_s < c_SPAN; v12_s += 1i) {
                    let v13_v: vec4<f32> = k_z_X(vec4<i32>(v10_x, v8_y, min(v4_first + v12_s, v5_last), v3_p.w), d_X, last_X);
                    v6_acc = v6_acc + vec4<f32>(v13_v.x) * t_K[min(u32(k_at(vec4<i32>(v12_s * 4i, v11_t, v3_p.z, 0i), d_K)), last_K)];
                    v6_acc = v6_acc + vec4<f32>(v13_v.y) * t_K[min(u32(k_at(vec4<i32>(v12_s * 4i + 1i, v11_t, v3_p.z, 0i), d_K)), last_K)];
                    v6_acc = v6_acc + vec4<f32>(v13_v.z) * t_K[min(u32(k_at(vec4<i32>(v12_s * 4i + 2i, v11_t, v3_p.z, 0i), d_K)), last_K)];
                    v6_acc = v6_acc + vec4<f32>(v13_v.w) * t_K[min(u32(k_at(vec4<i32>(v12_s * 4i + 3i, v11_t, v3_p.z, 0i), d_K)), last_K)];
                }
            }
        }
        t_O[k_at(v3_p, d_O)] = f_epilogue(v6_acc, v3_p);
    }
}
