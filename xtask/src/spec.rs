//! `spec`: writes `src/spec/kernels` from the prototypes in `kernels/common`.
//!
//! A kernel is declared once, by `GK_KERNEL(name)(parameters)` in its text. A comment `// Units: DTYPES x FUNCTIONS, ...` says for which storage
//! types (a list of `src/spec/mod.rs`) and functions (`GK_OP`; a list of `src/spec/FAMILY.rs`) the kernels after it are compiled. From both come a
//! struct of named arguments and a row of the table of kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::prototype::{Parameter, prototypes, structs};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only says whether the files are what the texts make of them.
    #[arg(long)]
    check: bool,
}

/// `spec`
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = generate(&root)?;
    let stale = stale(&root, &files);
    if args.check {
        return match stale.as_slice() {
            [] => Ok(()),
            [first, ..] => Err(format!("{} is stale; run `cargo xtask spec`", first.display())),
        };
    }
    let folder = root.join(FOLDER);
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for path in stale {
        let done = match files.get(&path) {
            Some(text) => std::fs::write(root.join(&path), text),
            None => std::fs::remove_file(root.join(&path)),
        };
        done.map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

const FOLDER: &str = "src/spec/kernels";

/// Generated files that differ from what is on disk, those on disk that should not be there included.
fn stale(root: &Path, files: &BTreeMap<PathBuf, String>) -> Vec<PathBuf> {
    let differs = |(path, text): &(&PathBuf, &String)| {
        std::fs::read_to_string(root.join(path)).ok().as_ref() != Some(*text)
    };
    let mut stale: Vec<PathBuf> = files.iter().filter(differs).map(|(p, _)| p.clone()).collect();
    let here = std::fs::read_dir(root.join(FOLDER)).into_iter().flatten().flatten();
    stale.extend(here.map(|e| Path::new(FOLDER).join(e.file_name())).filter(|p| !files.contains_key(p)));
    stale
}

/// Entries of a folder, sorted.
fn sorted(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    paths.sort();
    Ok(paths)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// All generated files, by path from the root.
fn generate(root: &Path) -> Result<BTreeMap<PathBuf, String>, String> {
    let mut files = BTreeMap::new();
    let mut families = vec![];
    let mut sources = vec![];
    for folder in sorted(&root.join("kernels/common"))? {
        let family = name_of(&folder);
        let mut kernels = vec![];
        for path in sorted(&folder)? {
            let file = format!("{family}/{}", name_of(&path));
            sources.push(format!("common/{file}"));
            if file.ends_with(".c") {
                let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
                kernels.extend(read(&file, &text).map_err(|e| format!("kernels/common/{file}: {e}"))?);
            }
        }
        if !kernels.is_empty() {
            files.insert(Path::new(FOLDER).join(format!("{family}.rs")), family_file(&family, &kernels)?);
            families.push(family);
        }
    }
    for dialect in ["cuda", "hip", "lint", "opencl"] {
        sources.extend(headers(&root.join("kernels"), dialect)?);
    }
    files.insert(Path::new(FOLDER).join("mod.rs"), module_file(&families, &sources));
    Ok(files)
}

/// The files of a folder and of those in it, sorted, by their paths from the root of kernels.
fn headers(root: &Path, folder: &str) -> Result<Vec<String>, String> {
    let mut found = vec![];
    for path in sorted(&root.join(folder))? {
        let name = format!("{folder}/{}", name_of(&path));
        if path.is_dir() { found.extend(headers(root, &name)?) } else { found.push(name) }
    }
    Ok(found)
}

/// A kernel as its text declares it.
struct Kernel {
    entry: String,
    file: String,
    params: Vec<Parameter>,
    /// Members of the struct that is the last parameter; none without such.
    members: Vec<Parameter>,
    /// Storage types and functions of its units.
    units: Vec<(String, Option<String>)>,
}

/// The kernels of a text, with the units of the last `// Units:` before each.
fn read(file: &str, text: &str) -> Result<Vec<Kernel>, String> {
    let mut found = vec![];
    let mut units = None;
    let mut declared = prototypes(text)?.into_iter();
    let structs = structs(text)?;
    for line in text.lines() {
        if let Some(list) = line.strip_prefix("// Units: ") {
            units = Some(unit_sets(list)?);
        } else if line.starts_with("GK_KERNEL(") {
            let (entry, mut params) = declared.next().ok_or("a prototype that cannot be read")?;
            let units = units.clone().ok_or(format!("no `// Units:` before {entry}"))?;
            let members = by_value(&mut params, &structs).map_err(|e| format!("{entry}: {e}"))?;
            found.push(Kernel { entry, file: file.into(), params, members, units });
        }
    }
    match declared.next() {
        Some((entry, _)) => Err(format!("{entry} does not begin its line")),
        None => Ok(found),
    }
}

/// Takes the struct, which must be the last parameter and called `args`, from a list of parameters; its members.
fn by_value(
    params: &mut Vec<Parameter>,
    structs: &BTreeMap<String, Vec<Parameter>>,
) -> Result<Vec<Parameter>, String> {
    let Some((ty, name)) = params.pop_if(|(ty, _)| ty.starts_with("GK_BY_VALUE(")) else { return Ok(vec![]) };
    if name != BY_VALUE {
        return Err(format!("the struct `{name}` is not called `{BY_VALUE}`"));
    }
    let list = &structs[ty.trim_start_matches("GK_BY_VALUE(").trim_end_matches(')')];
    let sizes = list.iter().map(|(ty, _)| size_class(ty)).collect::<Result<Vec<_>, _>>()?;
    if !sizes.is_sorted() {
        return Err("members of its struct stand in the order gk_dims and gk_i64, gk_f, the rest".into());
    }
    Ok(list.clone())
}

/// Name of the parameter that is a struct.
const BY_VALUE: &str = "args";

/// Place of a member's type in the order by falling size, in which C pads a struct at its end alone: 8 bytes, those of `gk_f`, 4 bytes.
fn size_class(ty: &str) -> Result<u8, String> {
    Ok(match role(ty)?.as_str() {
        "Dims" | "I64" => 0,
        "Real" => 1,
        "I32" | "U32" | "F32" => 2,
        other => return Err(format!("{other} is no member of a struct")),
    })
}

/// `FLOATS64 x UNARY, INTS` as pairs.
fn unit_sets(list: &str) -> Result<Vec<(String, Option<String>)>, String> {
    let set = |text: &str| {
        let parts: Vec<&str> = text.trim().split(" x ").collect();
        match parts.as_slice() {
            [dtypes] => Ok((dtypes.to_string(), None)),
            [dtypes, ops] => Ok((dtypes.to_string(), Some(ops.to_string()))),
            _ => Err(format!("`{text}` is not DTYPES or DTYPES x FUNCTIONS")),
        }
    };
    list.split(',').map(set).collect()
}

/// `norm_rows` as `NormRows`.
fn camel(entry: &str) -> String {
    let mut word = true;
    let mut out = String::new();
    for c in entry.chars() {
        match c {
            '_' => word = true,
            c if word => {
                out.extend(c.to_uppercase());
                word = false;
            }
            c => out.push(c),
        }
    }
    out
}

/// The role of a parameter in the notation of `kernel_args!`.
fn role(ty: &str) -> Result<String, String> {
    for (kind, role) in [("GK_IN(", "In"), ("GK_OUT(", "Out")] {
        if let Some(c) = ty.strip_prefix(kind).and_then(|t| t.strip_suffix(')')) {
            return Ok(format!("{role}({c:?})"));
        }
    }
    Ok(match ty {
        "int" => "I32",
        "gk_u32" => "U32",
        "gk_i64" => "I64",
        "float" => "F32",
        "gk_f" => "Real",
        "GK_DIMS" => "Dims",
        "GK_TENSOR_MAP" => "Map",
        _ => return Err(format!("no role for the type `{ty}`")),
    }
    .into())
}

/// Name of the argument struct of kernels with the same parameters: that of the first, without a number or the forms of its operands (`nn`) at its
/// end where others share it.
fn struct_name(list: &[&Kernel], all: &[Kernel]) -> String {
    let first = list[0].entry.as_str();
    let short = first.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_');
    let short = short.strip_suffix("_nn").unwrap_or(short);
    let taken = all.iter().any(|k| k.entry == short);
    camel(if list.len() > 1 && !taken { short } else { first }) + "Args"
}

const HEAD: &str = "// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.\n";
const KEYWORDS: &[&str] =
    &["self", "type", "in", "move", "ref", "loop", "match", "box", "use", "where", "fn", "mod", "dyn", "as"];

fn family_file(family: &str, kernels: &[Kernel]) -> Result<String, String> {
    let mut out = format!("//! Kernels of `kernels/common/{family}`.\n{HEAD}\n{}", imports(family, kernels));
    // Kernels with the same parameters share a struct, which has the first one's name.
    let mut groups: Vec<Vec<&Kernel>> = vec![];
    for k in kernels {
        match groups.iter_mut().find(|list| list[0].params == k.params && list[0].members == k.members) {
            Some(list) => list.push(k),
            None => groups.push(vec![k]),
        }
    }
    let mut names = BTreeMap::new();
    for list in &groups {
        let of: Vec<String> = list.iter().map(|k| format!("`{}`", k.entry)).collect();
        let name = struct_name(list, kernels);
        list.iter().for_each(|k| drop(names.insert(&k.entry, name.clone())));
        let Kernel { entry, params, members, .. } = list[0];
        let failed = |e| format!("{entry}: {e}");
        out += &format!("\nkernel_args! {{\n    /// Arguments of {}.\n    {name} {{\n", of.join(", "));
        out += &fields(params).map_err(failed)?;
        if !members.is_empty() {
            out += &format!("    }}\n    {BY_VALUE} {{\n{}", fields(members).map_err(failed)?);
        }
        out += "    }\n}\n";
    }
    out += &format!("\nkernel_table! {{\n    {};\n", camel(family));
    for k in kernels {
        let set = |(dtypes, ops): &(String, Option<String>)| {
            format!("({dtypes}, {})", ops.as_deref().unwrap_or("&[]"))
        };
        let sets: Vec<String> = k.units.iter().map(set).collect();
        let (upper, name) = (k.entry.to_uppercase(), &names[&k.entry]);
        out += &format!("    {upper}: {name} = {:?} {:?} [{}];\n", k.file, k.entry, sets.join(", "));
    }
    out += "}\n";
    Ok(out)
}

/// Parameters in the notation of `kernel_args!`.
fn fields(params: &[Parameter]) -> Result<String, String> {
    let mut out = String::new();
    for (ty, name) in params {
        if KEYWORDS.contains(&name.as_str()) {
            return Err(format!("`{name}` is a keyword of Rust"));
        }
        out += &format!("        {name}: {},\n", role(ty)?);
    }
    Ok(out)
}

/// The `use` lines of a family's file.
fn imports(family: &str, kernels: &[Kernel]) -> String {
    let units = || kernels.iter().flat_map(|k| &k.units);
    let dtypes: BTreeSet<&str> =
        units().map(|(d, _)| d.as_str()).chain(["kernel_args", "kernel_table"]).collect();
    let ops: BTreeSet<&str> = units().filter_map(|(_, o)| o.as_deref()).collect();
    let line = |path: &str, names: BTreeSet<&str>| match names.len() {
        0 => String::new(),
        1 => format!("use {path}::{};\n", names.iter().copied().collect::<String>()),
        _ => format!("use {path}::{{{}}};\n", names.into_iter().collect::<Vec<_>>().join(", ")),
    };
    line(&format!("crate::spec::{family}"), ops) + &line("crate::spec", dtypes)
}

fn module_file(families: &[String], sources: &[String]) -> String {
    let mut out = format!("//! The table of kernels and their texts.\n{HEAD}\nuse super::KernelSpec;\n\n");
    families.iter().for_each(|f| out += &format!("pub(crate) mod {f};\n"));
    out += "\n/// The kernels of each family.\npub(super) static FAMILIES: &[&[&KernelSpec]] = &[\n";
    families.iter().for_each(|f| out += &format!("    {f}::KERNELS,\n"));
    out += "];\n\nmacro_rules! texts {\n    ($($path:literal,)*) => {\n        ";
    out += "&[$(($path, include_str!(concat!(\"../../../kernels/\", $path)))),*]\n    };\n}\n";
    out += "\n/// Every text of a kernel or header, by its path under `kernels/`.\npub(crate) static SOURCES: &[(&str, &str)] = texts![\n";
    sources.iter().for_each(|s| out += &format!("    {s:?},\n"));
    out += "];\n";
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_what_the_texts_say() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let files = generate(&root).unwrap();
        assert_eq!(stale(&root, &files), [] as [PathBuf; 0], "run `cargo xtask spec`");
        assert!(files.len() > 20);
    }

    #[test]
    fn a_kernel_is_read_with_its_units() {
        let text = "// Units: FLOATS64 x UNARY, INTS\nGK_KERNEL(one)(GK_IN(gk_t, x), gk_i64 n) {}\nGK_KERNEL(two)(gk_f p) {}\n";
        let kernels = read("a/b.c", text).unwrap();
        assert_eq!(kernels[1].units, [("FLOATS64".into(), Some("UNARY".into())), ("INTS".into(), None)]);
        assert_eq!(kernels[0].params[1], ("gk_i64".to_string(), "n".to_string()));
        assert!(read("a/b.c", "GK_KERNEL(one)(int n) {}").is_err());
        let file = family_file("a", &kernels).unwrap();
        assert!(file.contains("x: In(\"gk_t\")") && file.contains("TWO: TwoArgs"), "{file}");
        let bad = read("a/b.c", "// Units: FLOATS\nGK_KERNEL(one)(int self) {}").unwrap();
        assert!(family_file("a", &bad).is_err_and(|e| e.contains("keyword")));
    }

    #[test]
    fn kernels_of_the_same_parameters_share_a_struct_with_a_name_of_its_own() {
        let name = |entries: [&str; 2]| {
            let text = entries.map(|e| format!("// Units: FLOATS\nGK_KERNEL({e})(int n) {{}}\n")).concat();
            let all = read("a/b.c", &text).unwrap();
            struct_name(&all.iter().collect::<Vec<_>>(), &all)
        };
        assert_eq!(name(["product_nn", "product_nt"]), "ProductArgs");
        assert_eq!(name(["tile128", "tile64"]), "TileArgs");
        assert_eq!(name(["rows", "rows_looped"]), "RowsArgs");
        assert_eq!(name(["sum_nn", "sum"]), "SumNnArgs", "the short name is another kernel's");
    }

    #[test]
    fn members_of_a_struct_are_fields_in_the_order_of_their_size() {
        let text = |members: &str| {
            format!(
                "typedef struct {{ {members} }} s;\n// Units: FLOATS\nGK_KERNEL(k)(int code, GK_BY_VALUE(s, args)) {{}}\n"
            )
        };
        let kernels = read("a/b.c", &text("gk_dims d; gk_i64 n; gk_f p, q; int m;")).unwrap();
        let file = family_file("a", &kernels).unwrap();
        let want = "code: I32,\n    }\n    args {\n        d: Dims,\n        n: I64,\n        p: Real,\n        q: Real,\n        m: I32,\n    }\n";
        assert!(file.contains(want), "{file}");
        for bad in ["int m; gk_i64 n;", "gk_f p; gk_i64 n;", "gk_i64 n; int m; gk_f p;", "gk_t x;"] {
            assert!(read("a/b.c", &text(bad)).is_err(), "{bad}");
        }
    }
}
