//! Kernels on the device, through the interface that the HIP driver uses.

use std::ffi::{CStr, CString, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr;

use hip_sys::{Hip, Hiprtc, hipSuccess};

/// The library that cargo has built next to this test.
fn library() -> PathBuf {
    let name = format!("{}hip_on_cpu{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let mut path = std::env::current_exe().unwrap();
    path.set_file_name(name);
    path
}

/// The architecture that the device states in this process.
fn arch() -> String {
    std::env::var("TREFOIL_HIP_ON_CPU_ARCH").unwrap_or_else(|_| "gfx90a".into())
}

/// Runs an ignored test of this file in a process whose device states another architecture.
fn on(arch: &str, test: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--ignored", "--nocapture"]).env("TREFOIL_HIP_ON_CPU_ARCH", arch);
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.contains("1 passed"), "{arch}: {said}");
}

/// The code object of a text; `None` without clang, which is said.
fn compile(text: &str) -> Option<Vec<u8>> {
    let rtc = Hiprtc::load_from(library()).unwrap();
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the places are valid.
    if unsafe { rtc.hiprtcVersion(&mut major, &mut minor) } != 0 {
        println!("skipped: {}", rtc.error_string(11));
        return None;
    }
    let text = CString::new(text).unwrap();
    let target = CString::new(format!("--gpu-architecture={}", arch())).unwrap();
    let mut options = [target.as_ptr(), c"-std=c++17".as_ptr()];
    let (mut program, mut bytes, none) = (ptr::null_mut(), 0, ptr::null_mut());
    // SAFETY: all texts are zero-terminated, all places valid, and buffers have the sizes that were answered.
    unsafe {
        assert_eq!(rtc.hiprtcCreateProgram(&mut program, text.as_ptr(), c"k.hip".as_ptr(), 0, none, none), 0);
        let status = rtc.hiprtcCompileProgram(program, 2, options.as_mut_ptr());
        rtc.hiprtcGetProgramLogSize(program, &mut bytes);
        let mut log = vec![0u8; bytes];
        rtc.hiprtcGetProgramLog(program, log.as_mut_ptr().cast());
        assert_eq!(status, 0, "{}", String::from_utf8_lossy(&log));
        rtc.hiprtcGetCodeSize(program, &mut bytes);
        let mut code = vec![0u8; bytes];
        rtc.hiprtcGetCode(program, code.as_mut_ptr().cast());
        rtc.hiprtcDestroyProgram(&mut program);
        Some(code)
    }
}

/// Runs `k(out)` of a text with blocks of 128 work-items; status and what it has written.
fn run(text: &str, blocks: u32, shared_bytes: u32) -> Option<(c_int, Vec<i32>)> {
    let code = compile(text)?;
    let hip = Hip::load_from(library()).unwrap();
    let mut out = vec![-1i32; 128 * blocks as usize];
    let (mut module, mut kernel) = (ptr::null_mut(), ptr::null_mut());
    let mut address: *mut c_void = out.as_mut_ptr().cast();
    let mut arguments: [*mut c_void; 1] = [(&raw mut address).cast()];
    let name: &CStr = c"k";
    // SAFETY: the image is the compiler's, the kernel takes one address, and the memory is live.
    let status = unsafe {
        assert_eq!(hip.hipModuleLoadData(&mut module, code.as_ptr().cast()), hipSuccess);
        assert_eq!(hip.hipModuleGetFunction(&mut kernel, module, name.as_ptr()), hipSuccess);
        let (stream, extra) = (ptr::null_mut(), ptr::null_mut());
        let status = hip.hipModuleLaunchKernel(
            kernel,
            blocks,
            1,
            1,
            128,
            1,
            1,
            shared_bytes,
            stream,
            arguments.as_mut_ptr(),
            extra,
        );
        assert_eq!(hip.hipModuleUnload(module), hipSuccess);
        status
    };
    Some((status, out))
}

const HEAD: &str = "extern \"C\" __global__ void __launch_bounds__(128) k(int* out)\n";
const FAILED: c_int = 719;

#[test]
fn blocks_share_memory_and_meet_at_barriers() {
    let text = "{ __shared__ int a[128]; int i = threadIdx.x; a[i] = i + 1000 * blockIdx.x; __syncthreads(); out[blockIdx.x * 128 + i] = a[127 - i]; }";
    let Some((status, out)) = run(&format!("{HEAD}{text}"), 2, 0) else { return };
    assert_eq!(status, hipSuccess);
    assert!((0..128).all(|i| out[i] == 127 - i as i32 && out[128 + i] == 1127 - i as i32));
}

#[test]
fn dynamic_shared_memory_is_what_the_launch_asks_for() {
    let text = "{ extern __shared__ int a[]; a[threadIdx.x] = threadIdx.x; __syncthreads(); out[threadIdx.x] = a[threadIdx.x ^ 1]; }";
    let text = format!("{HEAD}{text}");
    let Some((status, out)) = run(&text, 1, 512) else { return };
    assert_eq!(status, hipSuccess);
    assert!((0..128).all(|i| out[i] == i as i32 ^ 1));
    assert_eq!(run(&text, 1, 65 << 10).unwrap().0, 701, "more than the device has");
}

#[test]
fn wavefronts_have_64_lanes() {
    let lane = "__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u))";
    let text = format!(
        "{HEAD}{{ int lane = (int){lane}; out[threadIdx.x] = __builtin_amdgcn_ds_bpermute((lane ^ 32) << 2, (int)threadIdx.x); }}"
    );
    let Some((status, out)) = run(&text, 1, 0) else { return };
    assert_eq!(status, hipSuccess);
    assert!((0..128).all(|i| out[i] == i as i32 ^ 32));
}

/// x[i][k] = 16 i + k and y the identity but for a factor, so that each sum is an element of x: lane l has rows 4 (l / 16) ... of column l % 16.
#[test]
fn matrix_instructions_have_their_places() {
    let text = "{ typedef float sums __attribute__((ext_vector_type(4))); int lane = threadIdx.x % 64, place = lane % 16, quarter = lane / 16;
        sums d = {1.0f, 1.0f, 1.0f, 1.0f};
        for (int k = 0; k < 4; k++)
            d = __builtin_amdgcn_mfma_f32_16x16x4f32(16.0f * place + 4 * k + quarter, 4 * k + quarter == place ? 2.0f : 0.0f, d, 0, 0, 0);
        int right = 1;
        for (int r = 0; r < 4; r++) right &= d[r] == 1.0f + 2.0f * (16 * (4 * quarter + r) + place);
        out[threadIdx.x] = right; }";
    let Some((status, out)) = run(&format!("{HEAD}{text}"), 1, 0) else { return };
    assert_eq!(status, hipSuccess);
    assert_eq!(out, [1; 128]);
}

/// gfx90a, the architecture of these tests, takes denormal numbers of 16 bits for 0.
#[test]
fn matrix_instructions_of_f16_flush_denormal_numbers() {
    let text = "{ typedef float sums __attribute__((ext_vector_type(4))); typedef _Float16 terms __attribute__((ext_vector_type(4)));
        _Float16 least = (_Float16)6.1035e-5f, small = (_Float16)3e-5f, big = (_Float16)1024.0f;
        terms x = {least, small, (_Float16)0.0f, (_Float16)0.0f}, y = {big, big, big, big}; sums d = {0.0f, 0.0f, 0.0f, 0.0f};
        d = __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, d, 0, 0, 0);
        out[threadIdx.x] = d[0] == 4.0f * 1024.0f * (float)least; }";
    let Some((status, out)) = run(&format!("{HEAD}{text}"), 1, 0) else { return };
    assert_eq!(status, hipSuccess);
    assert_eq!(out, [1; 128]);
}

/// As of MFMA, by f16 and bf16, of which all these numbers are: x[i][k] = 16 i + k, y twice the identity.
#[test]
#[ignore = "matrix_instructions_of_32_lanes_have_their_places runs it"]
fn places_of_wmma() {
    let gfx12 = arch().starts_with("gfx12");
    let (terms, term, row, suffix) = match gfx12 {
        true => (8, "8 * (r / 4) + 4 * half + r % 4", "8 * half + r", "_gfx12"),
        false => (16, "r", "2 * r + half", ""),
    };
    for (name, number, of) in [
        ("f16", "_Float16", "(_Float16)(value)"),
        ("bf16", "short", "(short)(__builtin_bit_cast(unsigned, (float)(value)) >> 16)"),
    ] {
        let instruction = format!("__builtin_amdgcn_wmma_f32_16x16x16_{name}_w32{suffix}");
        let text = format!(
            "#define NUMBER(value) {of}
            {HEAD}{{
                typedef float sums __attribute__((ext_vector_type(8))); typedef {number} terms __attribute__((ext_vector_type({terms})));
                int lane = threadIdx.x % 32, place = lane % 16, half = lane / 16; terms x, y; sums d;
                for (int r = 0; r < {terms}; r++) {{
                    int k = {term};
                    x[r] = NUMBER(16 * place + k); y[r] = NUMBER(k == place ? 2 : 0);
                }}
                for (int r = 0; r < 8; r++) d[r] = 1.0f;
                d = {instruction}(x, y, d);
                int right = 1;
                for (int r = 0; r < 8; r++) right &= d[r] == 1.0f + 2.0f * (16 * ({row}) + place);
                out[threadIdx.x] = right; }}"
        );
        let Some((status, out)) = run(&text, 1, 0) else { return };
        assert_eq!(status, hipSuccess);
        assert_eq!(out, [1; 128], "{name}");
    }
}

#[test]
fn matrix_instructions_of_32_lanes_have_their_places() {
    for arch in ["gfx1100", "gfx1201"] {
        on(arch, "places_of_wmma");
    }
}

#[test]
#[ignore = "lanes_of_gfx11_give_the_same_terms runs it"]
fn terms_that_differ() {
    let text = "{ typedef float sums __attribute__((ext_vector_type(8))); typedef short terms __attribute__((ext_vector_type(16)));
        terms x, y; sums d; for (int i = 0; i < 16; i++) x[i] = y[i] = 0x3f80; for (int i = 0; i < 8; i++) d[i] = 0.0f;
        sums same = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(x, y, d);
        if (threadIdx.x % 32 == 20) y[3] = 0;
        sums other = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(x, y, d);
        out[threadIdx.x] = same[0] == 16.0f && other[0] != other[0]; }";
    let Some((status, out)) = run(&format!("{HEAD}{text}"), 1, 0) else { return };
    assert_eq!(status, hipSuccess);
    assert_eq!(out, [1; 128]);
}

#[test]
fn lanes_of_gfx11_give_the_same_terms() {
    on("gfx1100", "terms_that_differ");
}

#[test]
#[ignore = "rows_of_16_lanes_read_each_other runs it"]
fn permutation_of_rows() {
    let text = "{ int i = threadIdx.x, turned = (int)__builtin_amdgcn_permlanex16(0u, (unsigned)i, 0x89abcdefu, 0x01234567u, false, false);
        out[i] = (int)__builtin_amdgcn_permlanex16(0u, (unsigned)i, 0x76543210u, 0xfedcba98u, false, false) == (i ^ 16) && turned == (i ^ 31); }";
    let Some((status, out)) = run(&format!("{HEAD}{text}"), 1, 0) else { return };
    assert_eq!(status, hipSuccess);
    assert_eq!(out, [1; 128]);
}

#[test]
fn rows_of_16_lanes_read_each_other() {
    on("gfx1100", "permutation_of_rows");
}

#[test]
fn shared_memory_begins_as_nan() {
    let text = "{ __shared__ float a[128]; out[blockIdx.x * 128 + threadIdx.x] = a[threadIdx.x] != a[threadIdx.x]; a[threadIdx.x] = 1.0f; }";
    let Some((status, out)) = run(&format!("{HEAD}{text}"), 2, 0) else { return };
    assert_eq!(status, hipSuccess);
    assert_eq!(out, [1; 256]);
}

#[test]
fn what_hardware_does_not_define_fails_the_launch() {
    for (what, text) in [
        ("a barrier that half of the block reaches", "{ if (threadIdx.x < 64) __syncthreads(); }"),
        (
            "a value of a lane that has ended",
            "{ if (threadIdx.x & 1) return; out[0] = __builtin_amdgcn_ds_bpermute(4, 1); }",
        ),
        (
            "a value of a lane that waits at a barrier",
            "{ if (threadIdx.x & 1) __syncthreads(); out[0] = __builtin_amdgcn_ds_bpermute(4, 1); __syncthreads(); }",
        ),
        (
            "a matrix instruction that half of a wavefront reaches",
            "{ typedef float sums __attribute__((ext_vector_type(4))); sums d = {0.0f, 0.0f, 0.0f, 0.0f};
               if (threadIdx.x & 1) d = __builtin_amdgcn_mfma_f32_16x16x4f32(1.0f, 1.0f, d, 0, 0, 0); out[0] = (int)d[0]; }",
        ),
    ] {
        let Some((status, _)) = run(&format!("{HEAD}{text}"), 1, 0) else { return };
        assert_eq!(status, FAILED, "{what}");
    }
}

#[test]
fn a_missing_barrier_changes_the_result() {
    let text = "{ __shared__ int a[128]; __syncthreads(); a[threadIdx.x] = threadIdx.x; out[threadIdx.x] = a[threadIdx.x ^ 64]; }";
    let Some((status, out)) = run(&format!("{HEAD}{text}"), 1, 0) else { return };
    assert_eq!(status, hipSuccess);
    assert!((0..128).any(|i| out[i] != i as i32 ^ 64));
}
