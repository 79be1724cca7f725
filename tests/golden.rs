//! The golden suites on every backend that is there or asked for.

#[path = "common/asked.rs"]
mod asked;

fn main() -> std::process::ExitCode {
    parity_tests::suites::golden::run(asked::ASKED)
}
