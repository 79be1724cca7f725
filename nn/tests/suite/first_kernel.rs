//! The program of `docs/FIRST_KERNEL.md` is this one, and it runs.
#![allow(missing_docs, dead_code)] // a test has no use for `main`

use std::path::Path;

include!("../first_kernel/program.rs");

#[test]
fn the_pieces_of_the_page_are_the_program() {
    let read = |path: &str| {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        text.replace("\r\n", "\n")
    };
    let page = read("../docs/FIRST_KERNEL.md");
    let pieces = page.split("```rust\n").skip(1).map(|t| t.split("```").next().unwrap());
    let program = pieces.collect::<Vec<_>>().join("\n");
    assert!(program.contains("fn main"));
    assert!(
        program == read("tests/first_kernel/program.rs"),
        "tests/first_kernel/program.rs is another text"
    );
}

#[test]
fn the_program_runs_where_kernels_are_compiled() {
    for device in crate::common::devices() {
        if device.caps().is_cpu && crate::common::id(&device) == crate::common::id(&crate::common::cpu()) {
            let e = first_launch(&device).unwrap_err().to_string();
            assert!(e.contains("compile_raw"), "the CPU backend says what it lacks: {e}");
            continue;
        }
        let y = first_launch(&device).unwrap();
        let golden = (1.0 + 5f32.sqrt()) / 2.0;
        assert!(y[2] == 1.0 && (y[3] - golden).abs() < 1e-6 && y.len() == 5, "{y:?}");
        let errors = compare(&device).unwrap();
        assert!(errors.iter().all(|e| *e < 1e-5), "{errors:?}");
    }
}
