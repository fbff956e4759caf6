// gemm
@group(0) @binding(0) var<storage, read> t_A: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> t_B: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> t_C: array<vec4<f32>>;
struct Push {
    d_A: vec4<i32>,
    d_B: vec4<i32>,
    d_C: vec4<i32>,
    p_K4: i32,
}
@group(0) @binding(3) var<uniform> u: Push;
@id(0) override s_LX: i32 = 4i;
@id(1) override s_LY: i32 = 4i;
@id(2) override s_LZ: i32 = 1i;
var<workgroup> g_As: array<vec4<f32>, ((s_LY * 2i) * 4i)>;
var<workgroup> g_Bs: array<vec4<f32>, (16i * s_LX)>;

fn k_at(p: vec4<i32>, d: vec4<i32>) -> i32 {
    return ((p.w * d.z + p.z) * d.y + p.y) * d.x + p.x;
}

fn k_in2(p: vec4<i32>, d: vec4<i32>) -> bool {
    return (u32(p.x) < u32(d.x)) && (u32(p.y) < u32(d.y));
}

fn k_in4(p: vec4<i32>, d: vec4<i32>) -> bool {
    return all(vec4<u32>(p) < vec4<u32>(d));
}

fn k_mod(a: i32, b: i32) -> i32 {
    return a - a / b * b;
}

fn k_z_A(p: vec4<i32>, d: vec4<i32>, last: u32) -> vec4<f32> {
    let v = t_A[min(u32(k_at(p, d)), last)];
    return select(vec4<f32>(), v, k_in2(p, d));
}

fn k_z_B(p: vec4<i32>, d: vec4<i32>, last: u32) -> vec4<f32> {
    let v = t_B[min(u32(k_at(p, d)), last)];
    return select(vec4<f32>(), v, k_in2(p, d));
}

fn f_epilogue(v1_v: vec4<f32>, v2_p: vec4<i32>) -> vec4<f32> {
    return v1_v;
}

@compute @workgroup_size(s_LX, s_LY, 1i)
fn main(@builtin(local_invocation_id) local: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    let k_zero = i32(group.x >> 31u);
    var c_LX = s_LX;
    var c_LY = s_LY;
    let p_K4 = u.p_K4 + k_zero;
    let d_A = u.d_A + k_zero;
    let last_A = u32(d_A.x * d_A.y * d_A.z * d_A.w - 1);
    let d_B = u.d_B + k_zero;
    let last_B = u32(d_B.x * d_B.y * d_B.z * d_B.w - 1);
    let d_C = u.d_C + k_zero;
    let k_local = vec3<i32>(local);
    let k_group = vec3<i32>(group);
    let v3_l: vec3<i32> = k_local;
    let v4_g: vec3<i32> = k_group;
    let v5_lane: i32 = v3_l.y * c_LX + v3_l.x;
    let v6_row: i32 = v4_g.y * c_LY * 2i;
    let v7_col: i32 = v4_g.x * c_LX;
    var v8_acc: array<vec4<f32>, 2>;
    v8_acc[0i] = vec4<f32>(0.0f);
    v8_acc[1i] = vec4<f32>(0.0f);
    for (var v9_k: i32 = 0i; v9_k < p_K4; v9_k += 4i) {
        for (var v10_i: i32 = v5_lane; v10_i < c_LY * 2i * 4i; v10_i += c_LX * c_LY) {
            g_As[v10_i] = k_z_A(vec4<i32>(v9_k + k_mod(v10_i, 4i), v6_row + v10_i / 4i, 0i, v4_g.z), d_A, last_A);
        }
        for (var v11_i: i32 = v5_lane; v11_i < 16i * c_LX; v11_i += c_LX * c_LY) {
            g_Bs[v11_i] = k_z_B(vec4<i32>(v7_col + k_mod(v11_i, c_LX), v9_k * 4i + v11_i / c_LX, 0i, v4_g.z), d_B, last_B);
        }
        workgroupBarrier();
        for (var v12_kk: i32 = 0i; v12_kk < 4i; v12_kk += 1i) {
            let v13_b: i32 = v12_kk * 4i * c_LX + v3_l.x;
            let v14_a: vec4<f32> = g_As[(v3_l.y * 2i + 0i) * 4i + v12_kk];
            v8_acc[0i] = v8_acc[0i] + (vec4<f32>(v14_a.x) * g_Bs[v13_b] + vec4<f32>(v14_a.y) * g_Bs[v13_b + c_LX]);
            v8_acc[0i] = v8_acc[0i] + (vec4<f32>(v14_a.z) * g_Bs[v13_b + 2i * c_LX] + vec4<f32>(v14_a.w) * g_Bs[v13_b + 3i * c_LX]);
            let v15_a: vec4<f32> = g_As[(v3_l.y * 2i + 1i) * 4i + v12_kk];
            v8_acc[1i] = v8_acc[1i] + (vec4<f32>(v15_a.x) * g_Bs[v13_b] + vec4<f32>(v15_a.y) * g_Bs[v13_b + c_LX]);
            v8_acc[1i] = v8_acc[1i] + (vec4<f32>(v15_a.z) * g_Bs[v13_b + 2i * c_LX] + vec4<f32>(v15_a.w) * g_Bs[v13_b + 3i * c_LX]);
        }
        workgroupBarrier();
    }
    let v16_p: vec4<i32> = vec4<i32>(v7_col + v3_l.x, v6_row + v3_l.y * 2i + 0i, 0i, v4_g.z);
    {
        let at = v16_p;
        if (k_in4(at, d_C)) {
            t_C[k_at(at, d_C)] = f_epilogue(v8_acc[0i], v16_p);
        }
    }
    let v17_p: vec4<i32> = vec4<i32>(v7_col + v3_l.x, v6_row + v3_l.y * 2i + 1i, 0i, v4_g.z);
    {
        let at = v17_p;
        if (k_in4(at, d_C)) {
            t_C[k_at(at, d_C)] = f_epilogue(v8_acc[1i], v17_p);
        }
    }
}
