//! The portable text stays portable: it is C99 for a strict compiler, and free of what only some devices have.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use trefoil::spec::{KernelSpec, Role, Unit, all_kernels, all_units, expand};

/// Compiles a text as C99 without output; the compiler's messages on failure.
fn gcc(text: &str) -> Result<(), String> {
    let fail = |e: std::io::Error| e.to_string();
    let mut child = Command::new("gcc")
        .args([
            "-std=c99",
            "-fsyntax-only",
            "-Wall",
            "-Wextra",
            "-Wno-unused",
            "-include",
            "math.h",
            "-x",
            "c",
            "-",
        ])
        .args(["-Wno-unknown-pragmas", "-Wno-type-limits", "-Werror=implicit-function-declaration"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(fail)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(text.as_bytes()).map_err(fail)?;
    }
    let out = child.wait_with_output().map_err(fail)?;
    if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) }
}

#[test]
fn every_unit_is_c99() {
    if Command::new("gcc").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED: gcc is not installed, so no unit was compiled as C99");
        assert!(!trefoil::is_required("gcc"), "TREFOIL_REQUIRE names gcc");
        return;
    }
    let units: Vec<Unit> = all_units();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(e) = expand(unit, "lint").and_then(|text| gcc(&text)) {
                        failures.lock().unwrap().push(format!("{unit}\n{e}"));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} of {} units fail\n{}",
        failures.len(),
        units.len(),
        failures[..failures.len().min(5)].join("\n")
    );
}

/// Words that only a dialect header may use, and why.
const FORBIDDEN: &[(&str, &str)] = &[
    ("size_t", "its width differs between host and device"),
    ("long", "its width differs between C and OpenCL C: write gk_i64"),
    ("atomicAdd", "float atomics are not deterministic, integer ones differ between dialects"),
    ("atomic_add", "float atomics are not deterministic, integer ones differ between dialects"),
    ("threadIdx", "positions come from gk_lid and gk_bid"),
    ("blockIdx", "positions come from gk_lid and gk_bid"),
    ("get_local_id", "positions come from gk_lid and gk_bid"),
    ("get_group_id", "positions come from gk_lid and gk_bid"),
    ("get_global_id", "positions come from gk_gid"),
    ("__syncthreads", "barriers are GK_BARRIER"),
    ("barrier", "barriers are GK_BARRIER"),
    ("__shared__", "local memory is GK_LOCAL"),
    ("__local", "local memory is GK_LOCAL"),
    ("__global", "global memory is GK_GLOBAL"),
    ("__restrict__", "pointers are GK_IN and GK_OUT"),
    ("printf", "not on every device"),
];
/// Beginnings of words that are warp operations or a backend's own.
const FORBIDDEN_PREFIXES: &[&str] = &[
    "__shfl",
    "__ballot",
    "__any",
    "__all",
    "__activemask",
    "sub_group_",
    "work_group_",
    "__ldg",
    "__nv_",
    "__builtin",
];
/// Names that a condition must not ask for: the text is the same for every backend.
const BACKENDS: &[&str] = &[
    "GK_CUDA",
    "GK_HIP",
    "GK_OPENCL",
    "__CUDACC__",
    "__CUDA_ARCH__",
    "__HIPCC__",
    "__HIP__",
    "__OPENCL_VERSION__",
];

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|w| !w.is_empty())
}

/// The text with comments blanked, lines kept.
fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((code, tail)) = rest.split_once("/*") {
        out += code;
        let (comment, after) = tail.split_once("*/").unwrap_or((tail, ""));
        out.extend(comment.chars().filter(|&c| c == '\n'));
        rest = after;
    }
    out + rest
}

/// Breaches of the rules in one text, as `line: why`.
fn breaches(text: &str) -> Vec<String> {
    let mut found = vec![];
    // For every open conditional: whether the current branch is taken for f64 only, and whether its `#else` would be.
    let mut guards: Vec<(bool, bool)> = vec![];
    for (i, line) in without_comments(text).lines().enumerate() {
        let mut report = |why: String| found.push(format!("{}: {why}", i + 1));
        let directive = line.trim_start().strip_prefix('#').map(str::trim_start);
        if let Some(d) = directive {
            let only_f64 =
                d.contains("== GK_F64") && !d.contains("||") || d.contains("defined(GK_NEEDS_F64)");
            let not_f64 = d.contains("!= GK_F64") && !d.contains("||") && !d.contains("&&");
            if d.starts_with("if") {
                guards.push((only_f64, not_f64));
            } else if d.starts_with("elif") {
                guards.pop();
                guards.push((only_f64, not_f64));
            } else if d.starts_with("else") {
                let (_, other) = guards.pop().unwrap_or_default();
                guards.push((other, false));
            } else if d.starts_with("endif") {
                guards.pop();
            }
            if d.starts_with("if") || d.starts_with("elif") {
                words(d).filter(|w| BACKENDS.contains(w)).for_each(|w| report(format!("a condition on {w}")));
            }
        }
        for w in words(line) {
            if let Some((_, why)) = FORBIDDEN.iter().find(|(f, _)| *f == w) {
                report(format!("`{w}`: {why}"));
            }
            if FORBIDDEN_PREFIXES.iter().any(|p| w.starts_with(p)) {
                report(format!("`{w}`: only block collectives of the prelude"));
            }
            if w == "double" && !guards.iter().any(|g| g.0) {
                report(
                    "`double` outside a guard for f64: float units must compile where there is none".into(),
                );
            }
        }
    }
    found
}

/// The files of `kernels/common`, which lie in a folder per family.
fn texts() -> Vec<PathBuf> {
    let entries =
        |dir: &Path| -> Vec<PathBuf> { std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect() };
    let families = entries(&Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/common"));
    let mut files: Vec<PathBuf> = families.iter().flat_map(|dir| entries(dir)).collect();
    files.sort();
    assert!(families.len() > 20 && files.len() > families.len());
    files
}

/// The macros that a text defines, each with its replacement, on lines joined at backslashes.
fn macros(text: &str) -> Vec<(String, String)> {
    let joined = without_comments(text).replace("\\\n", " ");
    let define = |line: &str| {
        let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("define ")?;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let replacement: Vec<_> = rest[end..].split_whitespace().collect();
        Some((rest[..end].to_string(), replacement.join(" ")))
    };
    joined.lines().filter_map(define).collect()
}

/// Parameters of a dialect's macros, of `prelude/register_tile.h` and of pipelines of copies (how many tiles they have), which every kernel may set for
/// itself.
const PARAMETERS: &[&str] = &[
    "GK_BLOCK",
    "GK_CLUSTERING",
    "GK_MIN_BLOCKS",
    "GK_STAGES",
    "GK_TILE",
    "GK_TILE_BM",
    "GK_TILE_BN",
    "GK_TILE_BK",
    "GK_TILE_TM",
    "GK_TILE_TN",
    "GK_TILE_NA",
    "GK_TILE_NB",
];

#[test]
fn a_macro_means_the_same_in_every_family() {
    let mut meanings: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for path in texts() {
        let family = path.parent().and_then(Path::file_name).unwrap().to_string_lossy().into_owned();
        for (name, replacement) in macros(&std::fs::read_to_string(&path).unwrap()) {
            meanings.entry(name).or_default().entry(family.clone()).or_default().insert(replacement);
        }
    }
    let mut wrong = vec![];
    for (name, families) in meanings.iter().filter(|(n, _)| !PARAMETERS.contains(&n.as_str())) {
        let mut all = families.values();
        let first = all.next().unwrap();
        if !all.all(|other| other == first) {
            wrong.push(format!("{name}: {}", families.keys().cloned().collect::<Vec<_>>().join(", ")));
        }
    }
    assert!(wrong.is_empty(), "give these the prefix of their family:\n{}", wrong.join("\n"));
}

/// Beginnings and lengths of the macros of a text that have more lines than `most`.
fn long_macros(text: &str, most: usize) -> Vec<String> {
    let (mut found, mut lines) = (vec![], text.lines());
    while let Some(first) = lines.next() {
        if !first.trim_start().starts_with("#define ") {
            continue;
        }
        let (mut last, mut count) = (first, 1);
        while last.ends_with('\\') {
            last = lines.next().unwrap_or_default();
            count += 1;
        }
        if count > most {
            found.push(format!("{} ({count} lines)", first.trim_end_matches('\\').trim()));
        }
    }
    found
}

/// Heads and lengths of the functions and kernels of a text whose bodies have more lines than `most`: their braces stand alone on their lines.
fn long_bodies(text: &str, most: usize) -> Vec<String> {
    let (mut found, mut head, mut began) = (vec![], "", None);
    for (i, line) in text.lines().enumerate() {
        match line {
            "{" => began = Some(i),
            "}" => {
                if let Some(count) = began.take().map(|b| i - b - 1).filter(|&n| n > most) {
                    found.push(format!("{head} ({count} lines)"));
                }
            }
            _ if line.starts_with("GK_") => head = line,
            _ => {}
        }
    }
    found
}

/// Longer all the same: a loop over registers that runs its steps in place, and functions that differ in one call, of which compilers for CPUs would keep
/// every alternative.
const LONGER: &[&str] = &["GK_FOURIER_EACH_SLOT", "GK_FOURIER_GROUPS"];

#[test]
fn macros_and_bodies_fit_a_reader() {
    let mut all = vec![];
    for path in texts() {
        let text = std::fs::read_to_string(&path).unwrap();
        let found = long_macros(&text, 10).into_iter().chain(long_bodies(&text, 100));
        let found = found.filter(|b| !LONGER.iter().any(|name| b.contains(name)));
        all.extend(found.map(|b| format!("{}: {b}", path.display())));
    }
    assert!(all.is_empty(), "write functions (or functions of their parts):\n{}", all.join("\n"));
    let long =
        "#define A(x) \\\n    f(x); \\\n    g(x)\n#define B 1\nGK_FN void f(void)\n{\n    1;\n    2;\n}\n";
    assert_eq!(long_macros(long, 2), ["#define A(x) (3 lines)"]);
    assert_eq!(long_bodies(long, 1), ["GK_FN void f(void) (2 lines)"]);
}

#[test]
fn a_kernel_has_at_most_twelve_plain_scalars() {
    let scalars = |k: &KernelSpec| {
        k.args.iter().filter(|a| !matches!(a.role, Role::In(_) | Role::Out(_) | Role::Struct(_))).count()
    };
    let many: Vec<_> = all_kernels().filter(|k| scalars(k) > 12).map(|k| k.entry).collect();
    assert!(many.is_empty(), "pass those that steer no loop in a struct (GK_BY_VALUE): {many:?}");
}

/// The statements of a kernel's body, those of macros that bind parameters in their place.
fn statements(body: &str, binding: &BTreeMap<String, String>) -> Vec<String> {
    let parts = body.split(';').map(|s| s.split_whitespace().collect::<Vec<_>>().join(" "));
    let expanded = parts.flat_map(|s| {
        let replacement = words(&s).next().and_then(|first| binding.get(first));
        match replacement {
            Some(r) => statements(r.split_once(')').map_or("", |(_, r)| r), binding),
            None => vec![s],
        }
    });
    expanded.collect()
}

/// Kernels of a text that touch memory before their last `GK_BIND_OUT`, or have none: on CUDA they would not wait for the kernel before them.
fn unbound_kernels(text: &str, binding: &BTreeMap<String, String>) -> Vec<String> {
    let text = without_comments(text);
    let mut found = vec![];
    for kernel in text.split("\nGK_KERNEL(").skip(1) {
        let name = words(kernel).next().unwrap_or_default();
        let body =
            kernel.split_once("\n{").map_or("", |(_, rest)| rest.split("\n}").next().unwrap_or_default());
        let statements = statements(body, binding);
        let last = statements.iter().rposition(|s| s.starts_with("GK_BIND_OUT("));
        // Declarations of local memory and other bindings do not.
        let harmless = ["GK_BIND_", "GK_LOCAL", "GK_CLUSTER_ARRIVE"];
        let touches = |s: &String| {
            !harmless.iter().any(|h| s.starts_with(h))
                && (s.contains('[') || s.contains('*') || s.contains("gk_load"))
        };
        if last.is_none_or(|last| statements[..last].iter().any(touches)) {
            found.push(name.to_string());
        }
    }
    found
}

#[test]
fn kernels_bind_their_outputs_before_they_touch_memory() {
    let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap();
    let (mut kernels, mut found) = (0, vec![]);
    for path in texts() {
        let text = read(&path);
        let of_folder = texts().into_iter().filter(|p| p.parent() == path.parent());
        let binding: BTreeMap<_, _> = of_folder
            .flat_map(|p| macros(&read(&p)))
            .filter(|(name, r)| r.contains("_BIND") && name != "GK_KERNEL")
            .collect();
        kernels += text.matches("\nGK_KERNEL(").count();
        found.extend(unbound_kernels(&text, &binding));
    }
    assert!(kernels > 450 && found.is_empty(), "of {kernels} kernels: {found:?}");
    let none = BTreeMap::new();
    let late = "\nGK_KERNEL(k)(GK_OUT(gk_t, y))\n{\n    y[0] = 1;\n    GK_BIND_OUT(gk_t, y);\n}\n";
    assert_eq!(unbound_kernels(late, &none), ["k"]);
    assert_eq!(unbound_kernels(&late.replace("y[0]", "GK_UNROLL for (;;) y[0]"), &none), ["k"]);
    assert_eq!(unbound_kernels(&late.replace("    GK_BIND_OUT(gk_t, y);\n", ""), &none), ["k"]);
    assert_eq!(
        unbound_kernels(&late.replace("    y[0] = 1;\n", "    GK_LOCAL gk_f a[2];\n"), &none),
        [""; 0]
    );
}

#[test]
fn common_text_is_free_of_what_is_not_portable() {
    let mut all = vec![];
    for path in texts() {
        let text = std::fs::read_to_string(&path).unwrap();
        all.extend(breaches(&text).into_iter().map(|b| format!("{}:{b}", path.display())));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn the_rules_find_what_they_name() {
    let bad = "#if defined(GK_CUDA)\nx = __shfl_xor_sync(1, 2);\n#endif\ndouble y;\nsize_t n; /* double */\n";
    assert_eq!(breaches(bad).len(), 4, "{:?}", breaches(bad));
    let good = "#if GK_DTYPE == GK_F64\ndouble x;\n#else\nfloat x;\n#endif\n#if GK_DTYPE != GK_F64\nfloat z;\n#else\ndouble z;\n#endif\n";
    assert_eq!(breaches(good), [] as [String; 0]);
}
