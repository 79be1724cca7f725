//! `expand`: the exact text of a kernel unit, as the compiler gets it.

use trefoil::DType;
use trefoil::spec::{Unit, all_kernels, all_units, expand};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A kernel (`unary_flat`) or a file (`elementwise/unary.c`, `unary.c`).
    kernel_or_file: String,
    /// Whose text: cuda, hip, opencl or lint.
    #[arg(long)]
    dialect: String,
    /// Storage type: f32, f16, bf16, f64, i32, i64, u8.
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// Function (`GK_OP`), where the unit is specialised by one.
    #[arg(long)]
    op: Option<String>,
}

/// `expand`
pub(crate) fn run(args: &Args) -> Result<(), String> {
    if !["cuda", "hip", "opencl", "lint"].contains(&args.dialect.as_str()) {
        return Err(format!("unknown dialect {:?}; known: cuda, hip, opencl, lint", args.dialect));
    }
    print!("{}", expand(&find(&args.kernel_or_file, &args.dtype, args.op.as_deref())?, &args.dialect)?);
    Ok(())
}

/// The unit that is meant; the error lists what there is to choose from.
fn find(what: &str, dtype: &str, op: Option<&str>) -> Result<Unit, String> {
    let dtype = DType::from_name(dtype).ok_or_else(|| format!("unknown dtype {dtype:?}"))?;
    let kernel = all_kernels().find(|k| k.entry == what);
    let candidates: Vec<Unit> = all_units()
        .into_iter()
        .filter(|u| match kernel {
            // A kernel is in the units of its own functions only.
            Some(k) => u.file == k.file && k.has_unit(u.dtype, u.op),
            None => [u.file, u.file.rsplit('/').next().unwrap_or_default()]
                .into_iter()
                .any(|file| file == what || file.strip_suffix(".c") == Some(what)),
        })
        .collect();
    if candidates.is_empty() {
        let mut files: Vec<&str> = all_kernels().map(|k| k.file).collect();
        files.sort_unstable();
        files.dedup();
        return Err(format!("{what:?} is neither a kernel nor a file; files: {}", files.join(", ")));
    }
    let typed: Vec<Unit> = candidates.iter().filter(|u| u.dtype == dtype).copied().collect();
    if typed.is_empty() {
        let mut types: Vec<&str> = candidates.iter().map(|u| u.dtype.name()).collect();
        types.dedup();
        return Err(format!("{what} has no unit for {dtype}; there are: {}", types.join(", ")));
    }
    let ops =
        || typed.iter().map(|u| if u.op.is_empty() { "(none)" } else { u.op }).collect::<Vec<_>>().join(", ");
    match (op, typed.as_slice()) {
        (Some(op), _) => {
            // The short name will do: `exp` for `gk_op_exp`.
            let named = |u: &&Unit| u.op == op || u.op.split('_').skip(2).collect::<Vec<_>>().join("_") == op;
            typed
                .iter()
                .find(named)
                .copied()
                .ok_or_else(|| format!("{what} has no function {op:?}; there are: {}", ops()))
        }
        (None, [one]) => Ok(*one),
        (None, _) => {
            typed.iter().find(|u| u.op.is_empty()).copied().ok_or_else(|| {
                format!("{what} is specialised by a function; choose one with --op: {}", ops())
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn units_are_found_by_kernel_file_and_function() {
        let unit = find("unary_flat", "f16", Some("exp")).unwrap();
        assert_eq!(unit.to_string(), "elementwise/unary.c@f16+gk_op_exp");
        assert_eq!(find("unary", "f16", Some("gk_op_exp")).unwrap(), unit);
        assert_eq!(find("random_int", "i64", None).unwrap().to_string(), "random/random.c@i64");
        assert!(find("unary_flat", "f32", None).unwrap_err().contains("gk_op_neg"));
        assert!(find("unary_flat", "f32", Some("add")).unwrap_err().contains("gk_op_neg"));
        assert!(find("random_int", "f8", None).is_err());
        assert!(find("nothing", "f32", None).unwrap_err().contains("unary.c"));
    }
}
