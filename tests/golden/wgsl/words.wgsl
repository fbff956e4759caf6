// words
@group(0) @binding(0) var<storage, read> t_A: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> t_O: array<vec4<f32>>;
struct Push {
    d_A: vec4<i32>,
    d_O: vec4<i32>,
    p_SHIFT: i32,
    p_G: f32,
}
@group(0) @binding(2) var<uniform> u: Push;
@id(0) override s_LX: i32 = 1i;
@id(1) override s_LY: i32 = 1i;
@id(2) override s_LZ: i32 = 1i;
@id(3) override s_FLIP: bool = true;
@id(4) override s_HALF: f32 = 0.5f;

fn k_at(p: vec4<i32>, d: vec4<i32>) -> i32 {
    return ((p.w * d.z + p.z) * d.y + p.y) * d.x + p.x;
}

fn k_in2(p: vec4<i32>, d: vec4<i32>) -> bool {
    return (u32(p.x) < u32(d.x)) && (u32(p.y) < u32(d.y));
}

fn k_mod(a: i32, b: i32) -> i32 {
    return a - a / b * b;
}

fn k_z_A(p: vec4<i32>, d: vec4<i32>, last: u32) -> vec4<f32> {
    let v = t_A[min(u32(k_at(p, d)), last)];
    return select(vec4<f32>(), v, k_in2(p, d));
}

fn k_one_A(e: i32, last: u32) -> f32 {
    let at = min(u32(e), last * 4u + 3u);
    return t_A[at >> 2u][at & 3u];
}

fn f_square(v1_x: f32) -> f32 {
    var v2_y: f32 = v1_x;
    v2_y = v2_y * v1_x;
    return v2_y;
}

fn f_far(v3_p: vec4<i32>) -> vec4<f32> {
    let d_A = u.d_A;
    let last_A = u32(d_A.x * d_A.y * d_A.z * d_A.w - 1);
    return t_A[min(u32(k_at(vec4<i32>(v3_p.x - 100i, v3_p.y, v3_p.z + 50i, v3_p.w), d_A)), last_A)] + k_z_A(v3_p + vec4<i32>(1i, (-1i), 0i, 0i), d_A, last_A);
}

@compute @workgroup_size(s_LX, s_LY, s_LZ)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    let k_zero = i32(group.x >> 31u);
    let d_O = u.d_O + k_zero;
    let d_A = u.d_A + k_zero;
    let last_A = u32(d_A.x * d_A.y * d_A.z * d_A.w - 1);
    var c_FLIP = s_FLIP;
    let p_SHIFT = u.p_SHIFT + k_zero;
    var c_HALF = s_HALF;
    let p_G = u.p_G;
    if (all(id < vec3<u32>(vec3<i32>(d_O.x, d_O.y, d_O.z * d_O.w)))) {
        let z = i32(id.z);
        let v4_p = vec4<i32>(i32(id.x), i32(id.y), z % d_O.z, z / d_O.z);
        let v5_d: vec4<i32> = d_A;
        let v6_a: vec4<f32> = t_A[min(u32(k_at(v4_p, d_A)), last_A)];
        var v7_r: vec4<f32> = vec4<f32>(0.0f);
        var v8_acc: array<f32, 3>;
        var v9_pair: array<vec2<f32>, 2>;
        v8_acc[0i] = k_one_A(k_mod(v4_p.x * 3i + 0i, v5_d.x * 4i), last_A) + 0.0f;
        v8_acc[1i] = k_one_A(k_mod(v4_p.x * 3i + 5i, v5_d.x * 4i), last_A) + 1.0f;
        v8_acc[2i] = k_one_A(k_mod(v4_p.x * 3i + 10i, v5_d.x * 4i), last_A) + 2.0f;
        v9_pair[0i] = vec2<f32>(v8_acc[0i], v6_a.x);
        v9_pair[0i].y = v9_pair[0i].y - 1.0f;
        v9_pair[1i] = vec2<f32>(v8_acc[1i], v6_a.y);
        v9_pair[1i].y = v9_pair[1i].y - 1.0f;
        if (c_FLIP) {
            v7_r = v6_a.wzyx;
            v7_r.x = v7_r.x + v8_acc[2i];
        } else {
            v7_r = max(v6_a, vec4<f32>(0.0f));
        }
        if ((((v6_a.x > 0.0f) && !((v6_a.y < 1.0f))) || (v4_p.x == 2i))) {
            v7_r = v7_r + vec4<f32>(v9_pair[0i], v9_pair[1i]);
        } else {
            if ((v6_a.z >= 3.0f)) {
                v7_r = v7_r - vec4<f32>(1.0f);
            }
        }
        v7_r = v7_r + vec4<f32>(vec4<i32>(v6_a) * vec4<i32>(2i) - v4_p);
        var v10_total: i32 = p_SHIFT;
        for (var v11_i: i32 = 0i; v11_i < v5_d.y; v11_i += 1i) {
            for (var v12_j: i32 = 1i; v12_j < 6i; v12_j += 2i) {
                v10_total = v10_total + v11_i * v12_j / 2i;
                v7_r.y = v7_r.y + t_A[min(u32(v11_i * v5_d.x + k_mod(v12_j, v5_d.x)), last_A)].z;
            }
        }
        v7_r = v7_r + select(vec4<f32>(f32(v10_total)), f_far(v4_p), (v4_p.y > 1i));
        v7_r = v7_r + (vec4<f32>(k_one_A((-5i), last_A) + k_one_A(100000i, last_A)) + t_A[min(u32((-1i)), last_A)]);
        v7_r = min(v7_r, min(max(v6_a * vec4<f32>(100.0f), vec4<f32>((-50.0f))), vec4<f32>(50.0f)));
        v7_r = v7_r + vec4<f32>(floor(v6_a.x * c_HALF), ceil(v6_a.y * c_HALF), sign(v6_a.z), abs(v6_a.w));
        v7_r = v7_r + (round(v6_a * vec4<f32>(p_G)) + abs(v6_a) + vec4<f32>(f32(abs(v4_p.x - 3i) + min(v4_p.x, 2i) + max(-(v4_p.y), (-1i)))));
        let v13_v: vec3<f32> = vec3<f32>(v6_a.xy, 1.0f);
        t_O[k_at(v4_p, d_O)] = v7_r + vec4<f32>(v6_a.x * v7_r.x, f_square(v6_a.x), v13_v.xy * -(v13_v.yz));
    }
}
