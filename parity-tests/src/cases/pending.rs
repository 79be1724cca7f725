/// Names that the copied suites hold beside those of this library: kernels that it does not have yet. `run-cases` fails on them.
pub const PENDING: &[&str] =
    &["lora_linear", "lora_linear_backward", "quantize_int8", "quantize_int4", "quantize_fp8", "dequantize"];
