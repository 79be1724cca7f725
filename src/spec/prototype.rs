//! Reads the prototypes of kernels from their text. Depends on nothing: `xtask` compiles this file too.

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
        if kind == "GK_DIMS" {
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
}
