// affine
@group(0) @binding(0) var<storage, read> t_A: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> t_B: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> t_O: array<vec4<f32>>;
struct Push {
    d_A: vec4<i32>,
    d_B: vec4<i32>,
    d_O: vec4<i32>,
    p_K: f32,
}
@group(0) @binding(3) var<uniform> u: Push;
@id(0) override s_LX: i32 = 1i;
@id(1) override s_LY: i32 = 1i;
@id(2) override s_LZ: i32 = 1i;
@id(3) override s_FLOOR: f32 = 0.0f;
@id(4) override s_CLAMP: bool = false;

fn k_at(p: vec4<i32>, d: vec4<i32>) -> i32 {
    return ((p.w * d.z + p.z) * d.y + p.y) * d.x + p.x;
}

fn k_one_B(e: i32, last: u32) -> f32 {
    let at = min(u32(e), last * 4u + 3u);
    return t_B[at >> 2u][at & 3u];
}

fn f_epilogue(v1_v: vec4<f32>, v2_p: vec4<i32>) -> vec4<f32> {
    return v1_v;
}

@compute @workgroup_size(s_LX, s_LY, s_LZ)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    let k_zero = i32(group.x >> 31u);
    let d_O = u.d_O + k_zero;
    let d_A = u.d_A + k_zero;
    let last_A = u32(d_A.x * d_A.y * d_A.z * d_A.w - 1);
    let p_K = u.p_K;
    let d_B = u.d_B + k_zero;
    let last_B = u32(d_B.x * d_B.y * d_B.z * d_B.w - 1);
    var c_CLAMP = s_CLAMP;
    var c_FLOOR = s_FLOOR;
    if (all(id < vec3<u32>(vec3<i32>(d_O.x, d_O.y, d_O.z * d_O.w)))) {
        let z = i32(id.z);
        let v3_p = vec4<i32>(i32(id.x), i32(id.y), z % d_O.z, z / d_O.z);
        var v4_v: vec4<f32> = t_A[min(u32(k_at(v3_p, d_A)), last_A)] * vec4<f32>(p_K);
        let v5_e: i32 = v3_p.z * 4i;
        v4_v = v4_v + vec4<f32>(k_one_B(v5_e, last_B), k_one_B(v5_e + 1i, last_B), k_one_B(v5_e + 2i, last_B), k_one_B(v5_e + 3i, last_B));
        if (c_CLAMP) {
            v4_v = max(v4_v, vec4<f32>(c_FLOOR));
        }
        t_O[k_at(v3_p, d_O)] = f_epilogue(v4_v, v3_p);
    }
}
