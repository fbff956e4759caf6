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
@id(16) override s_DIGITS: bool = false;
@id(17) override s_LOW: f32 = (-1.0f);

fn k_at(p: vec4<i32>, d: vec4<i32>) -> i32 {
    return ((p.w * d.z + p.z) * d.y + p.y) * d.x + p.x;
}

fn k_in2(p: vec4<i32>, d: vec4<i32>) -> bool {
    return (u32(p.x) < u32(d.x)) && (u32(p.y) < u32(d.y));
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
    let d_X = u.d_X + k_zero;
    var c_OCG = s_OCG;
    var c_ICG = s_ICG;
    var c_S0 = s_S0;
    let d_K = u.d_K + k_zero;
    var c_BIAS = s_BIAS;
    var c_KH = s_KH;
    var c_KW = s_KW;
    let last_K = u32(d_K.x * d_K.y * d_K.z * d_K.w - 1);
    var c_DIGITS = s_DIGITS;
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
        let v4_d: vec4<i32> = d_X;
        let v5_first: i32 = v3_p.z * 4i / c_OCG * c_ICG / 4i + c_S0;
        let v6_last: i32 = v4_d.z - 1i;
        let v7_plane: i32 = v4_d.x * v4_d.y;
        let v8_wide: i32 = d_K.x;
        let v9_taps: i32 = v3_p.z * d_K.y + 0i;
        var v10_acc: vec4<f32> = vec4<f32>(0.0f);
        if (c_BIAS) {
            v10_acc = t_K[min(u32(k_at(vec4<i32>(0i, c_KH * c_KW, v3_p.z, 0i), d_K)), last_K)];
            if (c_DIGITS) {
                v10_acc = v10_acc + t_K[min(u32(k_at(vec4<i32>(1i, c_KH * c_KW, v3_p.z, 0i), d_K)), last_K)] * vec4<f32>(256.0f);
                v10_acc = v10_acc + t_K[min(u32(k_at(vec4<i32>(2i, c_KH * c_KW, v3_p.z, 0i), d_K)), last_K)] * vec4<f32>(65536.0f);
            }
        }
        for (var v11_ky: i32 = 0i; v11_ky < c_KH; v11_ky += 1i) {
            let v12_y: i32 = v3_p.y * c_SY + v11_ky * c_DY - c_PT;
            let v13_row: bool = ((v12_y >= 0i) && (v12_y < v4_d.y));
            let v14_from: i32 = v3_p.w * v4_d.z * v7_plane + v12_y * v4_d.x;
            for (var v15_kx: i32 = 0i; v15_kx < c_KW; v15_kx += 1i) {
                var v16_at: array<i32, 1>;
                let v17_x: i32 = v3_p.x * c_SX + 0i * c_DX + v15_kx * c_DX - c_PL;
                v16_at[0i] = select((-1i), v14_from + v17_x, ((v13_row && (v17_x >= 0i)) && (v17_x < v4_d.x)));
                let v18_w: i32 = (v9_taps + v11_ky * c_KW + v15_kx) * v8_wide;
                for (var v19_s: i32 = 0i; v19_s < c_SPAN; v19_s += 1i) {
                    let v20_ahead: i32 = min(v5_first + v19_s, v6_last) * v7_plane;
                    let v21_u: vec4<f32> = t_X[min(u32(max(v16_at[0i], 0i) + v20_ahead), last_X)];
                    let v22_v: vec4<f32> = select(vec4<f32>(0.0f), v21_u, (v16_at[0i] >= 0i));
                    let v23_q: i32 = v18_w + 0i * v8_wide + v19_s * 4i;
                    v10_acc = v10_acc + vec4<f32>(v22_v.x) * t_K[min(u32(v23_q), last_K)];
                    v10_acc = v10_acc + vec4<f32>(v22_v.y) * t_K[min(u32(v23_q + 1i), last_K)];
                    v10_acc = v10_acc + vec4<f32>(v22_v.z) * t_K[min(u32(v23_q + 2i), last_K)];
                    v10_acc = v10_acc + vec4<f32>(v22_v.w) * t_K[min(u32(v23_q + 3i), last_K)];
                }
            }
        }
        t_O[k_at(v3_p, d_O)] = f_epilogue(v10_acc, v3_p);
    }
}
