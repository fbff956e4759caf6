// pool
@group(0) @binding(0) var<storage, read> t_X: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> t_O: array<vec4<f32>>;
struct Push {
    d_X: vec4<i32>,
    d_O: vec4<i32>,
    p_PT: i32,
    p_PL: i32,
    p_PB: i32,
    p_PR: i32,
    p_C: i32,
}
@group(0) @binding(2) var<uniform> u: Push;
@id(0) override s_LX: i32 = 1i;
@id(1) override s_LY: i32 = 1i;
@id(2) override s_LZ: i32 = 1i;
@id(3) override s_KH: i32 = 1i;
@id(4) override s_KW: i32 = 1i;
@id(5) override s_SY: i32 = 1i;
@id(6) override s_SX: i32 = 1i;
@id(7) override s_DY: i32 = 1i;
@id(8) override s_DX: i32 = 1i;
@id(9) override s_AVERAGE: bool = false;
@id(10) override s_COUNT_PAD: bool = false;

fn k_at(p: vec4<i32>, d: vec4<i32>) -> i32 {
    return ((p.w * d.z + p.z) * d.y + p.y) * d.x + p.x;
}

fn k_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn f_epilogue(v1_v: vec4<f32>, v2_p: vec4<i32>) -> vec4<f32> {
    return v1_v;
}

fn f_larger(v3_a: f32, v4_b: f32) -> f32 {
    let v5_none: bool = (k_nan(v3_a) || k_nan(v4_b));
    let v6_r: f32 = select(v4_b, v3_a, (v3_a > v4_b));
    return select(v6_r, v3_a + v4_b, v5_none);
}

@compute @workgroup_size(s_LX, s_LY, s_LZ)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    let k_zero = i32(group.x >> 31u);
    let d_O = u.d_O + k_zero;
    let d_X = u.d_X + k_zero;
    var c_KH = s_KH;
    var c_SY = s_SY;
    var c_DY = s_DY;
    let p_PT = u.p_PT + k_zero;
    var c_KW = s_KW;
    var c_SX = s_SX;
    var c_DX = s_DX;
    let p_PL = u.p_PL + k_zero;
    let last_X = u32(d_X.x * d_X.y * d_X.z * d_X.w - 1);
    var c_AVERAGE = s_AVERAGE;
    var c_COUNT_PAD = s_COUNT_PAD;
    let p_PR = u.p_PR + k_zero;
    let p_PB = u.p_PB + k_zero;
    let p_C = u.p_C + k_zero;
    if (all(id < vec3<u32>(vec3<i32>(d_O.x, d_O.y, d_O.z * d_O.w)))) {
        let z = i32(id.z);
        let v7_p = vec4<i32>(i32(id.x), i32(id.y), z % d_O.z, z / d_O.z);
        let v8_d: vec4<i32> = d_X;
        var v9_acc: vec4<f32> = vec4<f32>(0.0f);
        var v10_count: f32 = 0.0f;
        var v11_found: bool = false;
        for (var v12_ky: i32 = 0i; v12_ky < c_KH; v12_ky += 1i) {
            let v13_y: i32 = v7_p.y * c_SY + v12_ky * c_DY - p_PT;
            for (var v14_kx: i32 = 0i; v14_kx < c_KW; v14_kx += 1i) {
                let v15_x: i32 = v7_p.x * c_SX + v14_kx * c_DX - p_PL;
                let v16_inside: bool = ((((v15_x >= 0i) && (v15_x < v8_d.x)) && (v13_y >= 0i)) && (v13_y < v8_d.y));
                if (v16_inside) {
                    let v17_v: vec4<f32> = t_X[min(u32(k_at(vec4<i32>(v15_x, v13_y, v7_p.z, v7_p.w), d_X)), last_X)];
                    if (c_AVERAGE) {
                        v9_acc = v9_acc + v17_v;
                    } else {
                        if (v11_found) {
                            v9_acc = vec4<f32>(f_larger(v9_acc.x, v17_v.x), f_larger(v9_acc.y, v17_v.y), f_larger(v9_acc.z, v17_v.z), f_larger(v9_acc.w, v17_v.w));
                        } else {
                            v9_acc = v17_v;
                        }
                        v11_found = true;
                    }
                }
                let v18_padded: bool = ((c_COUNT_PAD && (v15_x < v8_d.x + p_PR)) && (v13_y < v8_d.y + p_PB));
                if ((v16_inside || v18_padded)) {
                    v10_count = v10_count + 1.0f;
                }
            }
        }
        if (c_AVERAGE) {
            v9_acc = v9_acc / vec4<f32>(max(v10_count, 1.0f));
        } else {
            if (!(v11_found)) {
                var v19_low: f32 = (-3.4028234663852886e+38f);
                let v20_left: i32 = p_C - 4i * v7_p.z;
                v9_acc = vec4<f32>(v19_low, select(0.0f, v19_low, (v20_left > 1i)), select(0.0f, v19_low, (v20_left > 2i)), select(0.0f, v19_low, (v20_left > 3i)));
            }
        }
        t_O[k_at(v7_p, d_O)] = f_epilogue(v9_acc, v7_p);
    }
}
