//! The library as the HIP driver meets it: opened by path, functions found by name.

use std::path::PathBuf;

use hip_sys::{Hip, Hiprtc, hipSuccess};

/// The library that cargo has built next to this test.
fn library() -> PathBuf {
    let name = format!("{}hip_on_cuda{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let mut path = std::env::current_exe().unwrap();
    path.set_file_name(name);
    path
}

#[test]
fn all_functions_are_found_and_answer() {
    let hip = Hip::load_from(library()).unwrap();
    assert_eq!(hip.error_name(2), "hipErrorOutOfMemory");
    // SAFETY: 0 is the only flag there is.
    let init = unsafe { hip.hipInit(0) };
    if init == hipSuccess {
        let arch = hip.arch_name(0).unwrap().expect("an architecture");
        assert!(arch.starts_with("sm_"), "{arch}");
    } else {
        // Without NVIDIA's driver, or without a device.
        println!("hipInit answers {}", hip.error_name(init));
        assert_ne!(hip.error_name(init), "hipErrorUnknown");
        assert_eq!(hip.arch_name(0), Err(init));
    }
}

const TEXT: &std::ffi::CStr = c"
#ifndef __HIP_PLATFORM_NVIDIA__
#error the platform is not defined
#endif
extern \"C\" __global__ void k(float* x) { x[threadIdx.x] = 1.0f; }
";

#[test]
fn hiprtc_yields_a_cubin() {
    let rtc = Hiprtc::load_from(library()).unwrap();
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the places are valid.
    if unsafe { rtc.hiprtcVersion(&mut major, &mut minor) } != 0 {
        return println!("skipped: {}", rtc.error_string(11));
    }
    println!("NVRTC {major}.{minor}");
    let (mut program, mut bytes) = (std::ptr::null_mut(), 0);
    let none = std::ptr::null_mut();
    let mut options = [c"--gpu-architecture=sm_90".as_ptr(), c"-std=c++17".as_ptr()];
    // SAFETY: all texts are zero-terminated, all places valid, and the buffer has the size that was answered.
    unsafe {
        let made = rtc.hiprtcCreateProgram(&mut program, TEXT.as_ptr(), c"k.hip".as_ptr(), 0, none, none);
        assert_eq!(made, 0);
        assert_eq!(rtc.hiprtcCompileProgram(program, 2, options.as_mut_ptr()), 0);
        assert_eq!(rtc.hiprtcGetCodeSize(program, &mut bytes), 0);
        let mut code = vec![0u8; bytes];
        assert_eq!(rtc.hiprtcGetCode(program, code.as_mut_ptr().cast()), 0);
        assert_eq!(&code[..4], b"\x7fELF");
        assert_eq!(rtc.hiprtcDestroyProgram(&mut program), 0);
    }
}
