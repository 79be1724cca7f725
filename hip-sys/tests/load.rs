//! What loading says on machines with and without HIP. Cases that need their own environment run in a child process, which is this test
//! binary with the case's variables set.

use std::process::{Command, Output};

use hip_sys::{HIP_LIB_VAR, HIPRTC_LIB_VAR, Hip, Hiprtc, LoadError, hipErrorNoDevice, hipSuccess};

/// Set in child processes; without it the `child_*` functions are empty.
const CHILD: &str = "HIP_SYS_TEST_CHILD";

/// Runs one `child_*` test of this binary with the given variables and everything else about HIP unset.
fn child(test: &str, vars: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, "1");
    command.env_remove(HIP_LIB_VAR).env_remove(HIPRTC_LIB_VAR);
    command.envs(vars.iter().copied()).output().unwrap()
}

fn expect(test: &str, vars: &[(&str, &str)], said: &str) {
    let out = child(test, vars);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{test}: {}\n{text}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    assert!(text.contains(said), "{test}: expected {said:?} in\n{text}");
}

#[test]
fn child_prints_load_results() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let hip = Hip::load();
    match &hip {
        Ok(h) => println!("hip: loaded {}", h.library()),
        Err(e) => println!("hip: {e}"),
    }
    match Hiprtc::load(hip.as_ref().ok()) {
        Ok(r) => println!("hiprtc: loaded {}", r.library()),
        Err(e) => println!("hiprtc: {e}"),
    }
}

#[test]
fn absent_libraries_are_errors_that_name_the_variable() {
    let absent = "/nowhere/libabsent.so";
    let vars = [(HIP_LIB_VAR, absent), (HIPRTC_LIB_VAR, absent)];
    expect("child_prints_load_results", &vars, "hip: no library found (tried /nowhere/libabsent.so: ");
    expect("child_prints_load_results", &vars, "TREFOIL_HIP_LIB names one");
    expect("child_prints_load_results", &vars, "TREFOIL_HIPRTC_LIB names one");
}

#[test]
fn an_absent_path_is_a_library_error() {
    match Hip::load_from("/nowhere/libabsent.so") {
        Err(LoadError::Library { tried, var }) => {
            assert_eq!(var, HIP_LIB_VAR);
            assert_eq!(tried.len(), 1);
            assert!(tried[0].starts_with("/nowhere/libabsent.so: "), "{tried:?}");
        }
        other => panic!("{other:?}"),
    }
}

/// The mathematics library of the system stands in for a library that has none of the functions.
#[cfg(target_os = "linux")]
#[test]
fn a_library_without_the_functions_is_a_symbol_error() {
    let vars = [(HIP_LIB_VAR, "libm.so.6"), (HIPRTC_LIB_VAR, "libm.so.6")];
    expect("child_prints_load_results", &vars, "hip: libm.so.6 has no function hipInit");
    expect("child_prints_load_results", &vars, "hiprtc: libm.so.6 has no function hiprtcVersion");
}

#[test]
fn the_systems_runtime_loads_and_answers() {
    let out = child("child_asks_for_devices", &[]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{}\n{text}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    print!("{text}");
}

#[test]
fn child_asks_for_devices() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let hip = match Hip::load() {
        Ok(hip) => hip,
        Err(e) => return println!("skipped: {e}"),
    };
    let (mut version, mut count) = (0, -1);
    // SAFETY: both places are valid for the call.
    let (init, asked) = unsafe {
        let init = hip.hipInit(0);
        (init, hip.hipGetDeviceCount(&mut count))
    };
    // SAFETY: as above.
    let status = unsafe { hip.hipRuntimeGetVersion(&mut version) };
    println!(
        "{}: init {}, count {count} ({}), version {version} ({})",
        hip.library(),
        hip.error_name(init),
        hip.error_name(asked),
        hip.error_name(status)
    );
    assert_eq!(hip.error_name(hipSuccess), "hipSuccess");
    assert_eq!(hip.error_name(hipErrorNoDevice), "hipErrorNoDevice");
    if asked == hipSuccess && count > 0 {
        let arch = hip.arch_name(0).expect("properties of device 0").expect("an architecture");
        println!("device 0 is {arch}");
    } else {
        assert!(hip.arch_name(0).is_err(), "no device has no properties");
    }
}
