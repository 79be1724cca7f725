//! The table of kernels against the prototypes in the C text, in both directions.

use std::collections::BTreeMap;
use std::path::Path;

use trefoil::spec::{Role, all_kernels};

/// One parameter as written: `GK_IN(gk_t, x)` or `gk_i64 n`.
type Param = (String, String);

/// The parameters of every `GK_KERNEL(name)(...)` of a text, by name.
fn prototypes(text: &str) -> Vec<(String, Vec<Param>)> {
    let mut found = vec![];
    for part in without_comments(text).split("GK_KERNEL(").skip(1) {
        let (name, rest) = part.split_once(')').expect("a name");
        let list = rest.trim_start().strip_prefix('(').expect("a parameter list");
        let (mut depth, mut end, mut cuts) = (0, None, vec![0]);
        for (i, c) in list.char_indices() {
            match c {
                '(' => depth += 1,
                ')' if depth == 0 => {
                    end = Some(i);
                    break;
                }
                ')' => depth -= 1,
                ',' if depth == 0 => cuts.push(i + 1),
                _ => {}
            }
        }
        let end = end.expect("a closed parameter list");
        let params = cuts.iter().enumerate().map(|(k, &from)| {
            let to = cuts.get(k + 1).map_or(end, |next| next - 1);
            param(list[from..to].trim())
        });
        found.push((name.trim().to_string(), params.collect()));
    }
    found
}

fn param(text: &str) -> Param {
    if let Some((kind, rest)) = text.split_once('(') {
        let (ty, name) = rest.trim_end_matches(')').split_once(',').expect("type and name");
        return (format!("{kind}({})", ty.trim()), name.trim().to_string());
    }
    let (ty, name) = text.rsplit_once(' ').unwrap_or_else(|| panic!("`{text}` is no parameter"));
    (ty.trim().to_string(), name.trim().to_string())
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((code, tail)) = rest.split_once("/*") {
        out += code;
        rest = tail.split_once("*/").map_or("", |(_, after)| after);
    }
    out + rest
}

fn written(role: &Role) -> String {
    match role {
        Role::In(t) => format!("GK_IN({t})"),
        Role::Out(t) => format!("GK_OUT({t})"),
        Role::I32 => "int".into(),
        Role::U32 => "gk_u32".into(),
        Role::I64 => "gk_i64".into(),
        Role::F32 => "float".into(),
        Role::Real => "gk_f".into(),
        Role::Dims => "gk_dims".into(),
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
            for (name, params) in prototypes(&std::fs::read_to_string(&path).unwrap()) {
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
        let row: Vec<Param> = k.args.iter().map(|a| (written(&a.role), a.name.to_string())).collect();
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

#[test]
fn prototypes_are_read_as_written() {
    let text = "/* GK_KERNEL(not_this)(int a) */ GK_KERNEL(one)(GK_IN(gk_t, x), GK_OUT(gk_u8, y),\n    gk_i64 n, gk_f p) { f(1, 2); }";
    let want = [("GK_IN(gk_t)", "x"), ("GK_OUT(gk_u8)", "y"), ("gk_i64", "n"), ("gk_f", "p")];
    let want: Vec<Param> = want.iter().map(|(t, n)| (t.to_string(), n.to_string())).collect();
    assert_eq!(prototypes(text), [("one".to_string(), want)]);
}
