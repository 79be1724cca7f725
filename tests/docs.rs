//! The documentation against the sources.
#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Files of these extensions below a folder of the repository.
fn files(folder: &str, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())).flatten() {
            let path = entry.path();
            let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
            if path.is_dir() {
                open.push(path);
            } else if extensions.contains(&extension) {
                found.push(path);
            }
        }
    }
    found
}

/// The `TREFOIL_` names in a text.
fn variables(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    text.match_indices("TREFOIL_")
        .map(|(at, _)| text[at..].split(|c| !is_name(c)).next().unwrap_or_default())
        // A bare prefix, or one with a placeholder, names no variable.
        .filter(|n| !n.ends_with('_'))
        .map(String::from)
        .collect()
}

#[test]
fn environment_variables_are_documented_and_exist() {
    let mut used = BTreeSet::new();
    for folder in ["src", "nn", "cli", "hip-sys", "parity-tests", "xtask", "benches", "examples", "tests"] {
        for file in files(folder, &["rs"]) {
            // This file speaks of the names in general.
            if !file.ends_with("tests/docs.rs") {
                used.extend(variables(&read(&file)));
            }
        }
    }
    let page = read("docs/ENVIRONMENT.md");
    let documented = variables(&page);
    let missing: Vec<_> = used.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/ENVIRONMENT.md lacks {missing:?}");
    let stale: Vec<_> = documented.difference(&used).collect();
    assert!(stale.is_empty(), "docs/ENVIRONMENT.md names what no source uses: {stale:?}");
    for page in ["README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md", "docs/NUMERICS.md"] {
        let unknown: Vec<_> = variables(&read(page)).difference(&documented).cloned().collect();
        assert!(unknown.is_empty(), "{page} names {unknown:?}");
    }
}

#[test]
fn the_dialect_page_has_every_macro() {
    let page = read("docs/KERNEL_DIALECT.md");
    let known = |name: &str| {
        // `gk_block_sum(v, tmp)`, `_max` stands for gk_block_max.
        page.contains(name)
            || ["_max", "_min"].iter().any(|s| name.ends_with(s) && name.matches('_').count() == 2)
    };
    for dialect in ["cuda", "hip", "opencl", "lint"] {
        for line in read(format!("kernels/{dialect}/dialect.h")).lines() {
            let Some(rest) = line.strip_prefix("#define ") else { continue };
            let name =
                rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap_or_default();
            // What the prelude's collectives, math and stores are made of.
            let inner = [
                "GK_SHUFFLE_WIDTH",
                "GK_M32",
                "GK_M64",
                "GK_QUICK_RECIP",
                "GK_QUICK_EXP2",
                "GK_QUICK_BF16",
                "GK_QUICK_F16",
                "GK_QUICK_MAX",
                "GK_STREAMS",
            ]
            .contains(&name);
            assert!(inner || known(name), "docs/KERNEL_DIALECT.md lacks {name} of {dialect}");
        }
    }
    // And nothing that is not there.
    let mut texts = String::new();
    for file in files("kernels", &["h", "c"]) {
        texts += &read(&file);
    }
    for file in ["src/engine/program.rs", "src/dtype.rs"] {
        texts += &read(file);
    }
    for name in page.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
        if (name.starts_with("GK_") || name.starts_with("gk_")) && !name.ends_with('_') {
            let dtype = name.strip_prefix("GK_").and_then(|d| trefoil::DType::from_name(&d.to_lowercase()));
            // The list of math functions is made by macros.
            assert!(dtype.is_some() || texts.contains(name), "docs/KERNEL_DIALECT.md names {name}");
        }
    }
}

#[test]
fn the_example_of_the_readme_is_the_one_that_runs() {
    let readme = read("README.md");
    let code = readme.split("```rust\n").nth(1).and_then(|t| t.split("```").next()).unwrap_or_default();
    assert!(code.contains("fn main"));
    assert!(read("examples/quick_start.rs").ends_with(code), "examples/quick_start.rs is another text");
}

#[test]
fn quoted_code_is_in_the_tree() {
    let page = read("docs/ADDING_A_KERNEL.md");
    let squeezed = |t: &str| t.split_whitespace().collect::<String>().replace(",)", ")");
    let mut tree = String::new();
    for folder in ["src", "kernels", "parity-tests/src"] {
        for file in files(folder, &["rs", "c"]) {
            tree += &squeezed(&read(&file));
        }
    }
    let mut blocks = 0;
    for block in page.split("```").skip(1).step_by(2) {
        let code = block.split_once('\n').map_or("", |(_, c)| c);
        for part in code.split("// ...\n") {
            blocks += 1;
            assert!(
                tree.contains(&squeezed(part)),
                "docs/ADDING_A_KERNEL.md quotes what is not in the tree:\n{part}"
            );
        }
    }
    assert!(blocks >= 6);
}

/// Every page of documentation that is written by hand or generated into `docs`.
fn pages() -> Vec<PathBuf> {
    let mut pages = files("docs", &["md"]);
    pages.extend(
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "kernels/README.md", "parity-tests/README.md"]
            .map(|p| root().join(p)),
    );
    pages
}

/// What stands in a text between single backquotes.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    // Blocks are fenced by three of them, and text alternates with code.
    text.split("```").step_by(2).flat_map(|t| t.split('`').skip(1).step_by(2))
}

#[test]
fn paths_exist() {
    let tops = "benches cli docs examples fuzz hip-sys kernels nn parity-tests src tests xtask";
    let tops: Vec<&str> = tops.split(' ').collect();
    let mut checked = 0;
    for page in pages() {
        // What changed once may be gone today.
        let text = if page.ends_with("CHANGELOG.md") { String::new() } else { read(&page) };
        for span in spans(&text) {
            let path = span.split([':', '#']).next().unwrap_or_default();
            let top = path.split_once('/').map(|(top, _)| top);
            // `X` and `FAMILY` stand for names; the tutorials speak of a project of the reader's.
            let placeholder = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_uppercase());
            let pattern = path.contains(['*', '{', ' ', '=']) || path.split(['/', '.']).any(placeholder);
            let tutorial = ["FIRST_KERNEL.md", "FIRST_MODEL.md"].iter().any(|p| page.ends_with(p));
            let pattern = pattern || (tutorial && path == "src/main.rs");
            if top.is_some_and(|t| tops.contains(&t)) && !pattern {
                checked += 1;
                let beside = page.parent().unwrap_or(root()).join(path);
                assert!(root().join(path).exists() || beside.exists(), "{} names {path}", page.display());
            }
        }
    }
    assert!(checked > 50, "only {checked} paths were found");
}

#[test]
fn commands_name_what_there_is() {
    let workspace = read("Cargo.toml");
    let members = workspace.lines().find(|l| l.starts_with("members")).unwrap_or_default().split('"');
    let folders = members.skip(1).step_by(2).chain(["."]);
    let manifests: String = folders.map(|m| read(format!("{m}/Cargo.toml"))).collect();
    let chores = read("xtask/src/main.rs") + &read("xtask/checks/src/main.rs");
    let camel = |name: &str| -> String { name.split('-').map(|w| w[..1].to_uppercase() + &w[1..]).collect() };
    let exists = |folders: &[&str], name: &str| {
        let path = |f: &&str| root().join(f).join(name);
        folders.iter().any(|f| path(f).with_extension("rs").exists() || path(f).join("main.rs").exists())
    };
    let mut checked = 0;
    for page in pages() {
        for line in read(&page).lines().filter(|l| l.contains("cargo ")) {
            let words: Vec<&str> = line.split(|c: char| c.is_whitespace() || "`|;,()".contains(c)).collect();
            for pair in words.windows(2).filter(|w| !w[1].is_empty() && w[1] != "..") {
                let known = match pair[0] {
                    "--example" => exists(&["examples", "nn/examples"], pair[1]),
                    "--test" => exists(&["tests", "nn/tests", "cli/tests", "parity-tests/tests"], pair[1]),
                    "-p" | "--package" => manifests.contains(&format!("name = \"{}\"", pair[1])),
                    "xtask" => chores.contains(&format!("    {}(", camel(pair[1].trim_start_matches('<')))),
                    _ => continue,
                };
                checked += 1;
                assert!(known, "{}: no {} {}", page.display(), pair[0], pair[1]);
            }
        }
    }
    assert!(checked > 20, "only {checked} were found");
}

#[test]
fn the_picture_of_the_layers_is_the_one_of_the_crate() {
    let page = read("docs/ARCHITECTURE.md");
    let picture = page.split("```text\n").nth(1).and_then(|t| t.split("```").next()).unwrap_or_default();
    let lines: Vec<&str> = picture.lines().map(str::trim_end).collect();
    let front = read("src/lib.rs");
    let front: Vec<&str> = front.lines().map(|l| l.trim_start_matches("//!").trim_end()).collect();
    let same = |w: &[&str]| w.iter().zip(&lines).all(|(a, b)| a.strip_prefix(' ').unwrap_or(a) == *b);
    assert!(lines.len() > 10 && front.windows(lines.len()).any(same), "src/lib.rs shows another picture");
}

#[test]
fn the_readme_counts_what_the_tables_have() {
    use parity_tests::cases::KERNELS;
    use trefoil::ops::Family;
    let readme = read("README.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let losses = KERNELS.iter().filter(|k| k.family == Family::Loss && k.forward.is_none()).count();
    let network = read("docs/NETWORKS.md");
    let table = network.split("table of types: begin -->").nth(1).unwrap_or_default();
    let types = table.lines().take_while(|l| !l.contains("end -->")).filter(|l| l.starts_with("| `")).count()
        - usize::from(table.contains("| `type` |"));
    let compared = read("docs/LAYERS.md").lines().filter(|l| l.starts_with("| ")).count() - 1;
    let layers = format!("{types} layer types, of which {compared}");
    for claim in [format!("{losses} losses"), layers] {
        assert!(readme.contains(&claim), "README.md does not say {claim}");
    }
}

#[test]
fn links_lead_somewhere() {
    for page in pages() {
        let text = read(&page);
        for target in text.split("](").skip(1).filter_map(|t| t.split(')').next()) {
            if !target.contains("://") && !target.starts_with('#') {
                let path = page.parent().unwrap_or(root()).join(target.split('#').next().unwrap_or_default());
                assert!(path.exists(), "{} links to {target}", page.display());
            }
        }
        // Tables and code are as wide as they have to be.
        let prose = text.split("```").step_by(2).flat_map(str::lines).filter(|l| !l.starts_with(['|', ' ']));
        for line in prose {
            assert!(line.chars().count() <= 150, "{}: a long line: {line}", page.display());
        }
    }
}
