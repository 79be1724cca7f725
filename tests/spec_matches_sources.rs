//! The table of kernels against the prototypes in the C text, in both directions.

use std::collections::BTreeMap;
use std::path::Path;

use trefoil::spec::{Parameter, Role, all_kernels, prototypes};

fn written(role: &Role) -> String {
    match role {
        Role::In(t) => format!("GK_IN({t})"),
        Role::Out(t) => format!("GK_OUT({t})"),
        Role::I32 => "int".into(),
        Role::U32 => "gk_u32".into(),
        Role::I64 => "gk_i64".into(),
        Role::F32 => "float".into(),
        Role::Real => "gk_f".into(),
        Role::Dims => "GK_DIMS".into(),
        other => panic!("unknown role {other:?}"),
    }
}

#[test]
fn every_kernel_has_its_row_and_every_row_its_kernel() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/common");
    let mut sources = BTreeMap::new();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "c") {
            let file = path.file_name().unwrap().to_string_lossy().into_owned();
            for (name, params) in prototypes(&std::fs::read_to_string(&path).unwrap()).unwrap() {
                let before = sources.insert((file.clone(), name.clone()), params);
                assert!(before.is_none(), "{file}: kernel {name} is defined twice");
            }
        }
    }
    assert!(!sources.is_empty());
    let mut without_row = sources.clone();
    for k in all_kernels() {
        let key = (k.file.to_string(), k.entry.to_string());
        let params =
            sources.get(&key).unwrap_or_else(|| panic!("{}: no kernel `{}` in the text", k.file, k.entry));
        let row: Vec<Parameter> = k.args.iter().map(|a| (written(&a.role), a.name.to_string())).collect();
        assert_eq!(
            &row, params,
            "{}: parameters of `{}`: table on the left, text on the right",
            k.file, k.entry
        );
        assert!(!k.dtypes.is_empty(), "{}: `{}` is compiled for no dtype", k.file, k.entry);
        without_row.remove(&key);
    }
    assert!(without_row.is_empty(), "kernels without a row in src/spec: {:?}", without_row.keys());
}
