//! `#include` of kernel text that lies in memory.

use std::rc::Rc;

/// Files within files; more is a cycle.
const DEPTH: usize = 32;

/// A line with the file that it is from, and its number there, from 1.
pub(crate) struct Line<'a> {
    pub(crate) text: &'a str,
    pub(crate) file: Rc<str>,
    pub(crate) number: usize,
}

/// The name in an `#include` line.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("#include")?.trim_start();
    let (name, _) = rest.strip_prefix('"')?.split_once('"')?;
    Some(name)
}

/// Appends the lines of a file and of the files that it includes, which lie beside it or at the root. Conditions are left to the compiler.
/// `read` gives the text of a file. Errors: a file that is not there, with where it is asked for; a cycle.
pub(crate) fn flatten<'a>(
    file: &str,
    read: &dyn Fn(&str) -> Option<&'a str>,
    depth: usize,
    out: &mut Vec<Line<'a>>,
) -> Result<(), String> {
    let text = read(file).ok_or_else(|| format!("no kernel text `{file}`"))?;
    if depth == DEPTH {
        return Err(format!("`{file}` includes itself"));
    }
    let name: Rc<str> = file.into();
    for (i, text) in text.lines().enumerate() {
        let Some(other) = included(text) else {
            out.push(Line { text, file: name.clone(), number: i + 1 });
            continue;
        };
        let beside = file.rsplit_once('/').map(|(folder, _)| format!("{folder}/{other}"));
        let path = beside.filter(|path| read(path).is_some()).unwrap_or_else(|| other.to_string());
        flatten(&path, read, depth + 1, out).map_err(|e| format!("{e}, in {file} at line {}", i + 1))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(files: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let read = |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| *text);
        let mut lines = vec![];
        flatten("a/main", &read, 0, &mut lines)?;
        Ok(lines.iter().map(|l| format!("{}:{} {}", l.file, l.number, l.text)).collect())
    }

    #[test]
    fn files_lie_beside_or_at_the_root() {
        let main = ("a/main", "one\n  #include \"x.h\" // beside\n#include \"b/x.h\"\nfour");
        let all = flat(&[main, ("a/x.h", "beside\n"), ("x.h", "no"), ("b/x.h", "root")]).unwrap();
        assert_eq!(all, ["a/main:1 one", "a/x.h:1 beside", "b/x.h:1 root", "a/main:4 four"]);
        let e = flat(&[main, ("x.h", "here")]).unwrap_err();
        assert!(e.contains("`b/x.h`") && e.contains("in a/main at line 3"), "{e}");
        let e = flat(&[("a/main", "#include \"main\"")]).unwrap_err();
        assert!(e.contains("`a/main` includes itself"), "{e}");
    }
}
