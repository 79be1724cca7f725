//! Every target for a second or two, in the workspace's tests. `cargo run -p trefoil-fuzz -- all` runs them for longer.

use std::process::Command;

#[test]
fn every_target_runs() {
    let done = Command::new(env!("CARGO_BIN_EXE_fuzz")).args(["all", "--seconds", "2"]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
    for line in said.lines().filter(|l| l.contains(" inputs in ")) {
        let inputs: u64 = line.split([':', ' ']).find_map(|word| word.parse().ok()).unwrap();
        // On a busy machine a target gets to few inputs, of which all may be bad.
        assert!(inputs > 0 && (inputs < 500 || !line.contains(" 0 accepted")), "{line}");
    }
}
