//! Reads the prototypes of kernels from their text. Depends on nothing: `xtask` compiles this file too.

use std::collections::BTreeMap;

/// One parameter as written: its type, `GK_IN(gk_t)` or `gk_i64`, and its name.
pub type Parameter = (String, String);

/// The parameters of every `GK_KERNEL(name)(...)` of a text, with the kernel's name, in order. Says what is wrong where a text breaks off.
pub fn prototypes(text: &str) -> Result<Vec<(String, Vec<Parameter>)>, String> {
    let mut found = vec![];
    for part in without_comments(text).split("GK_KERNEL(").skip(1) {
        let (name, rest) = part.split_once(')').ok_or("GK_KERNEL without a name")?;
        let name = name.trim().to_string();
        let broken = || format!("the parameter list of {name} is not closed");
        let list = rest.trim_start().strip_prefix('(').ok_or_else(broken)?;
        let params = split(list).ok_or_else(broken)?.into_iter().map(parameter).collect::<Result<_, _>>()?;
        found.push((name, params));
    }
    Ok(found)
}

/// Members of the structs that kernels of a text take by value, by the struct's name.
pub fn structs(text: &str) -> Result<BTreeMap<String, Vec<Parameter>>, String> {
    let text = without_comments(text);
    let mut found = BTreeMap::new();
    for part in text.split("GK_BY_VALUE(").skip(1) {
        let name = part.split(',').next().unwrap_or_default().trim();
        let missing = || format!("no `typedef struct {{ ... }} {name};`");
        let (before, _) = text.split_once(&format!("}} {name};")).ok_or_else(missing)?;
        let (_, body) = before.rsplit_once("typedef struct {").ok_or_else(missing)?;
        let declarations = body.split(';').map(str::trim).filter(|d| !d.is_empty());
        let members = declarations.map(members).collect::<Result<Vec<_>, _>>()?.concat();
        found.insert(name.to_string(), members);
    }
    Ok(found)
}

/// `gk_i64 n, m` as two members.
fn members(declaration: &str) -> Result<Vec<Parameter>, String> {
    let (ty, names) =
        declaration.split_once(char::is_whitespace).ok_or(format!("`{declaration}` declares no member"))?;
    let ty = if ty == "gk_dims" { "GK_DIMS" } else { ty };
    Ok(names.split(',').map(|name| (ty.to_string(), name.trim().to_string())).collect())
}

/// The parts of a list, which ends with the parenthesis that was not opened in it, between its outer commas.
fn split(list: &str) -> Option<Vec<&str>> {
    let (mut depth, mut from, mut parts) = (0usize, 0, vec![]);
    for (i, c) in list.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => {
                parts.push(list[from..i].trim());
                return Some(parts);
            }
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(list[from..i].trim());
                from = i + 1;
            }
            _ => {}
        }
    }
    None
}

fn parameter(text: &str) -> Result<Parameter, String> {
    let bad = || format!("`{text}` is not a parameter");
    if let Some((kind, rest)) = text.split_once('(') {
        let rest = rest.strip_suffix(')').ok_or_else(bad)?;
        if matches!(kind, "GK_DIMS" | "GK_TENSOR_MAP") {
            return Ok((kind.to_string(), rest.trim().to_string()));
        }
        let (ty, name) = rest.split_once(',').ok_or_else(bad)?;
        return Ok((format!("{kind}({})", ty.trim()), name.trim().to_string()));
    }
    let (ty, name) = text.rsplit_once(char::is_whitespace).ok_or_else(bad)?;
    Ok((ty.trim().to_string(), name.trim().to_string()))
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        out += &rest[..at];
        let end = if rest[at..].starts_with("/*") { "*/" } else { "\n" };
        out.push(' ');
        rest = rest[at + 2..].split_once(end).map_or("", |(_, after)| after);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prototypes_are_read_as_written() {
        let text = "/* GK_KERNEL(not_this)(int a) */ GK_KERNEL(one)(GK_IN(gk_t, x), // an (input\n GK_OUT(gk_u8, y),\n    gk_i64 n, gk_f p) { f(1, 2); }";
        let want = [("GK_IN(gk_t)", "x"), ("GK_OUT(gk_u8)", "y"), ("gk_i64", "n"), ("gk_f", "p")];
        let want: Vec<Parameter> = want.iter().map(|(t, n)| (t.to_string(), n.to_string())).collect();
        assert_eq!(prototypes(text), Ok(vec![("one".to_string(), want)]));
        assert!(prototypes("GK_KERNEL(a)(int x").is_err() && prototypes("GK_KERNEL(a").is_err());
        assert_eq!(prototypes("nothing"), Ok(vec![]));
    }

    #[test]
    fn structs_are_read_with_their_members() {
        let text = "typedef struct { int no; } other;\ntypedef struct {\n    gk_dims shape, s;\n    gk_f p; /* a */\n} k_args;\nGK_KERNEL(k)(GK_IN(gk_t, x), GK_BY_VALUE(k_args, args)) {}";
        assert_eq!(prototypes(text).unwrap()[0].1[1], ("GK_BY_VALUE(k_args)".into(), "args".into()));
        let want = [("GK_DIMS", "shape"), ("GK_DIMS", "s"), ("gk_f", "p")];
        let want: Vec<Parameter> = want.iter().map(|(t, n)| (t.to_string(), n.to_string())).collect();
        assert_eq!(structs(text).unwrap()["k_args"], want);
        assert!(structs("GK_KERNEL(k)(GK_BY_VALUE(k_args, args)) {}").is_err());
    }
}
