//! `api`: writes docs/api/trefoil.txt, the public interface of the library, one line per item.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Item, Type, UseTree, Visibility};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Fail if the file is not what would be written.
    #[arg(long)]
    check: bool,
}

const FILE: &str = "docs/api/trefoil.txt";

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// `api`
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let (path, text) = (root().join(FILE), listing(&expanded()?)?);
    let fail = |e: std::io::Error| format!("{}: {e}", path.display());
    if !args.check {
        return std::fs::write(&path, text).map_err(fail);
    }
    let old = std::fs::read_to_string(&path).map_err(fail)?.replace("\r\n", "\n");
    let (before, now): (BTreeSet<_>, BTreeSet<_>) = (old.lines().collect(), text.lines().collect());
    let (gone, new): (Vec<_>, Vec<_>) =
        (before.difference(&now).collect(), now.difference(&before).collect());
    if gone.is_empty() && new.is_empty() {
        return Ok(());
    }
    let lines = |sign: char, all: &[&&str]| all.iter().map(|l| format!("{sign} {l}\n")).collect::<String>();
    let advice = match gone.is_empty() {
        true => "Items were added. Run `cargo xtask api` and commit the file.",
        false => {
            "A line that went or changed is a breaking change: note it in CHANGELOG.md under the next version. Then run `cargo xtask api` and \
             commit the file."
        }
    };
    Err(format!(
        "{FILE} is not the public interface any more:\n{}{}{advice}",
        lines('-', &gone),
        lines('+', &new)
    ))
}

/// Set for the process that stands in for the compiler of the workspace's own crates, see [`as_compiler`].
const STANDS_IN: &str = "XTASK_STANDS_IN_FOR_RUSTC";

/// The library as one text without macros, which the compiler writes. It calls that unstable, so it is asked to allow it, but for this crate only: a
/// permission that cargo saw would make it compile every dependency anew.
fn expanded() -> Result<String, String> {
    let args = ["rustc", "--quiet", "--package", "trefoil", "--lib", "--profile", "check"];
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let out = Command::new(env!("CARGO"))
        .args(args)
        .args(["--", "-Zunpretty=expanded"])
        .env("RUSTC_WORKSPACE_WRAPPER", this)
        .env(STANDS_IN, "1")
        .current_dir(root())
        .output()
        .map_err(|e| format!("cargo does not start: {e}"))?;
    if !out.status.success() {
        return Err(format!("cargo rustc failed:\n{}", String::from_utf8_lossy(&out.stderr)));
    }
    String::from_utf8(out.stdout).map_err(|e| e.to_string())
}

/// Runs the compiler that the first argument names with the others, and unstable options allowed, where [`expanded`] has asked for it.
pub(crate) fn as_compiler() -> Option<ExitCode> {
    std::env::var_os(STANDS_IN)?;
    let mut args = std::env::args_os().skip(1);
    let done = Command::new(args.next()?).args(args).env("RUSTC_BOOTSTRAP", "1").status();
    Some(done.ok().and_then(|s| s.code()).map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8)))
}

/// A path within the crate, from its root, which is empty.
type Name = Vec<String>;

/// The crate: items by their paths, and how modules see each other's.
#[derive(Default)]
struct Crate {
    /// Items of every module.
    modules: BTreeMap<Name, Vec<Item>>,
    /// Items by their own paths; modules are not among them.
    items: HashMap<Name, Item>,
    /// Imports of every module: the name that is brought in (`None` for all) and the path as written.
    uses: BTreeMap<Name, Vec<(Option<String>, Name, bool)>>,
    /// Items that can be reached from outside, with the paths by which they can.
    public: BTreeMap<Name, BTreeSet<Name>>,
}

fn hidden(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|a| a.path().is_ident("doc") && a.meta.to_token_stream().to_string().contains("hidden"))
}

fn is_pub(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

fn child(path: &[String], name: impl ToString) -> Name {
    path.iter().cloned().chain([name.to_string()]).collect()
}

/// Name, visibility and attributes of an item that has them.
fn head(item: &Item) -> Option<(String, &Visibility, &[Attribute])> {
    Some(match item {
        Item::Const(i) => (i.ident.to_string(), &i.vis, &i.attrs),
        Item::Enum(i) => (i.ident.to_string(), &i.vis, &i.attrs),
        Item::Fn(i) => (i.sig.ident.to_string(), &i.vis, &i.attrs),
        Item::Mod(i) => (i.ident.to_string(), &i.vis, &i.attrs),
        Item::Static(i) => (i.ident.to_string(), &i.vis, &i.attrs),
        Item::Struct(i) => (i.ident.to_string(), &i.vis, &i.attrs),
        Item::Trait(i) => (i.ident.to_string(), &i.vis, &i.attrs),
        Item::Type(i) => (i.ident.to_string(), &i.vis, &i.attrs),
        Item::Union(i) => (i.ident.to_string(), &i.vis, &i.attrs),
        _ => return None,
    })
}

/// What a `use` brings in: names with paths.
fn flatten(tree: &UseTree, at: &[String], public: bool, out: &mut Vec<(Option<String>, Name, bool)>) {
    match tree {
        UseTree::Path(p) => flatten(&p.tree, &child(at, &p.ident), public, out),
        UseTree::Name(n) if n.ident == "self" => out.push((at.last().cloned(), at.to_vec(), public)),
        UseTree::Name(n) => out.push((Some(n.ident.to_string()), child(at, &n.ident), public)),
        UseTree::Rename(r) => out.push((Some(r.rename.to_string()), child(at, &r.ident), public)),
        UseTree::Glob(_) => out.push((None, at.to_vec(), public)),
        UseTree::Group(g) => g.items.iter().for_each(|t| flatten(t, at, public, out)),
    }
}

impl Crate {
    fn add(&mut self, path: Name, items: Vec<Item>) {
        let mut uses = vec![];
        for item in &items {
            match item {
                Item::Use(u) if !hidden(&u.attrs) => flatten(&u.tree, &[], is_pub(&u.vis), &mut uses),
                Item::Mod(m) => {
                    let inner = m.content.as_ref().map(|(_, items)| items.clone()).unwrap_or_default();
                    self.add(child(&path, &m.ident), inner);
                }
                item => {
                    if let Some((name, ..)) = head(item) {
                        self.items.insert(child(&path, name), item.clone());
                    }
                }
            }
        }
        self.uses.insert(path.clone(), uses);
        self.modules.insert(path, items);
    }

    /// The item or module that a path means in a module; `None` for what is not of this crate.
    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<Name> {
        let (first, rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => vec![],
            "self" => module.to_vec(),
            "super" => module.split_last()?.1.to_vec(),
            name => self.lookup(module, name, depth)?,
        };
        for name in rest {
            at = match name.as_str() {
                "super" => at.split_last()?.1.to_vec(),
                name => self.lookup(&at, name, depth)?,
            };
        }
        Some(at)
    }

    fn lookup(&self, module: &[String], name: &str, depth: usize) -> Option<Name> {
        let own = child(module, name);
        if self.items.contains_key(&own) || self.modules.contains_key(&own) {
            return Some(own);
        }
        let depth = depth.checked_sub(1)?;
        let uses = self.uses.get(module)?;
        let named = uses.iter().find(|(n, ..)| n.as_deref() == Some(name));
        if let Some((_, path, _)) = named {
            return self.resolve(module, path, depth);
        }
        uses.iter().filter(|(n, ..)| n.is_none()).find_map(|(_, path, _)| {
            let from = self.resolve(module, path, depth)?;
            self.lookup(&from, name, depth)
        })
    }

    /// Notes what can be reached through a module that is known by a public path.
    fn walk(&mut self, module: &[String], public: &[String], depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        for item in self.modules.get(module).cloned().unwrap_or_default() {
            let Some((name, vis, attrs)) = head(&item) else { continue };
            if !is_pub(vis) || hidden(attrs) {
                continue;
            }
            let (own, outside) = (child(module, &name), child(public, &name));
            match item {
                Item::Mod(_) => self.walk(&own, &outside, depth),
                _ => {
                    self.public.entry(own).or_default().insert(outside);
                }
            }
        }
        for (name, path, _) in self.uses.get(module).cloned().unwrap_or_default().into_iter().filter(|u| u.2)
        {
            let Some(target) = self.resolve(module, &path, 8) else { continue };
            let outside = name.map_or_else(|| public.to_vec(), |name| child(public, name));
            if self.modules.contains_key(&target) {
                self.walk(&target, &outside, depth);
            } else {
                self.public.entry(target).or_default().insert(outside);
            }
        }
    }

    /// The public path of an item: where it is written, if that can be reached, or the shortest.
    fn primary(&self, item: &[String]) -> Option<String> {
        let names = self.public.get(item)?;
        names.iter().min_by_key(|n| (*n != item, n.len(), *n)).map(|n| outside(n))
    }

    /// The item of the crate that a type is, behind references.
    fn of_type(&self, module: &[String], ty: &Type) -> Option<Name> {
        match ty {
            Type::Path(p) => {
                let path: Name = p.path.segments.iter().map(|s| s.ident.to_string()).collect();
                self.resolve(module, &path, 8)
            }
            Type::Reference(r) => self.of_type(module, &r.elem),
            _ => None,
        }
    }
}

fn outside(path: &[String]) -> String {
    format!("trefoil::{}", path.join("::"))
}

/// Source text on one line, without needless spaces.
fn text(tokens: impl ToTokens) -> String {
    let mut out = String::new();
    write(tokens.to_token_stream(), &mut out);
    out
}

fn write(tokens: TokenStream, out: &mut String) {
    let mut all = tokens.into_iter().peekable();
    while let Some(token) = all.next() {
        match token {
            TokenTree::Group(g) => {
                let (open, close) = match g.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Brace => (" { ", " }"),
                    Delimiter::None => ("", ""),
                };
                if g.delimiter() == Delimiter::Bracket && out.ends_with(char::is_alphanumeric) {
                    out.push(' ');
                }
                out.push_str(open);
                write(g.stream(), out);
                out.push_str(close);
            }
            TokenTree::Punct(p) => {
                let mut sign = String::from(p.as_char());
                let mut joint = p.spacing() == Spacing::Joint;
                while joint
                    && let Some(TokenTree::Punct(next)) = all.peek()
                    && matches!(
                        (sign.as_str(), next.as_char()),
                        (":", ':') | ("-" | "=", '>') | ("." | "..", '.' | '=')
                    )
                {
                    sign.push(next.as_char());
                    joint = next.spacing() == Spacing::Joint;
                    all.next();
                }
                match sign.as_str() {
                    "'" => {
                        word_begins(out);
                        out.push('\'');
                        if let Some(TokenTree::Ident(name)) = all.next() {
                            out.push_str(&name.to_string());
                        }
                    }
                    "," | ":" | ";" => out.push_str(&format!("{sign} ")),
                    "->" | "=>" | "=" | "+" => out.push_str(&format!(" {sign} ")),
                    _ => out.push_str(&sign),
                }
            }
            word => {
                word_begins(out);
                out.push_str(&word.to_string());
            }
        }
    }
    while out.ends_with([',', ' ']) && !out.ends_with("{ ") {
        out.pop();
    }
}

/// A space where a word would otherwise run into what stands before it.
fn word_begins(out: &mut String) {
    if out.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ')' | '>' | ']' | '}')) {
        out.push(' ');
    }
}

/// Whether an attribute closes an item to literals or matches of other crates.
fn non_exhaustive(attrs: &[Attribute]) -> &'static str {
    if attrs.iter().any(|a| a.path().is_ident("non_exhaustive")) { "#[non_exhaustive] " } else { "" }
}

/// Generics of an item with the where clause behind.
fn generics(g: &syn::Generics) -> (String, String) {
    (text(g), g.where_clause.as_ref().map(|w| format!(" {}", text(w))).unwrap_or_default())
}

/// The lines of an item: path and what stands there.
fn describe(path: &str, item: &Item, lines: &mut BTreeSet<String>) {
    let mut line = |name: Option<String>, what: String| {
        lines.insert(match name {
            Some(name) => format!("{path}::{name}: {what}"),
            None => format!("{path}: {what}"),
        });
    };
    match item {
        Item::Const(i) => line(None, format!("const {}", text(&i.ty))),
        Item::Static(i) => line(None, format!("static {}", text(&i.ty))),
        Item::Fn(i) => line(None, text(&i.sig)),
        Item::Type(i) => line(None, format!("type{} = {}", text(&i.generics), text(&i.ty))),
        Item::Struct(i) => {
            let (g, w) = generics(&i.generics);
            line(None, format!("{}struct{g}{w}", non_exhaustive(&i.attrs)));
            for (at, f) in i.fields.iter().enumerate().filter(|(_, f)| is_pub(&f.vis) && !hidden(&f.attrs)) {
                let name = f.ident.as_ref().map_or_else(|| at.to_string(), |n| n.to_string());
                line(Some(name), format!("field {}", text(&f.ty)));
            }
            if i.fields.iter().any(|f| !is_pub(&f.vis)) {
                line(None, "has private fields".into());
            }
        }
        Item::Enum(i) => {
            let (g, w) = generics(&i.generics);
            line(None, format!("{}enum{g}{w}", non_exhaustive(&i.attrs)));
            for v in i.variants.iter().filter(|v| !hidden(&v.attrs)) {
                let mut fields = v.fields.clone();
                fields.iter_mut().for_each(|f| f.attrs.clear());
                line(
                    Some(v.ident.to_string()),
                    format!("{}variant{}", non_exhaustive(&v.attrs), text(fields)),
                );
            }
        }
        Item::Trait(i) => {
            let (g, w) = generics(&i.generics);
            let bounds =
                if i.supertraits.is_empty() { String::new() } else { format!(": {}", text(&i.supertraits)) };
            let safety = if i.unsafety.is_some() { "unsafe " } else { "" };
            line(None, format!("{safety}trait{g}{bounds}{w}"));
            for item in &i.items {
                match item {
                    syn::TraitItem::Fn(f) if !hidden(&f.attrs) => {
                        let provided = if f.default.is_some() { " (provided)" } else { "" };
                        line(Some(f.sig.ident.to_string()), format!("{}{provided}", text(&f.sig)));
                    }
                    syn::TraitItem::Const(c) => {
                        line(Some(c.ident.to_string()), format!("const {}", text(&c.ty)))
                    }
                    syn::TraitItem::Type(t) => {
                        line(Some(t.ident.to_string()), format!("type {}", text(&t.bounds)))
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// The lines of an implementation.
fn describe_impl(krate: &Crate, module: &[String], i: &syn::ItemImpl, lines: &mut BTreeSet<String>) {
    let item = krate.of_type(module, &i.self_ty);
    let owner = item.as_ref().and_then(|item| krate.primary(item));
    if item.is_some() && owner.is_none() {
        return;
    }
    let Some((_, path, _)) = &i.trait_ else {
        let Some(owner) = owner else { return };
        for item in &i.items {
            match item {
                syn::ImplItem::Fn(f) if is_pub(&f.vis) && !hidden(&f.attrs) => {
                    lines.insert(format!("{owner}::{}: {}", f.sig.ident, text(&f.sig)));
                }
                syn::ImplItem::Const(c) if is_pub(&c.vis) && !hidden(&c.attrs) => {
                    lines.insert(format!("{owner}::{}: const {}", c.ident, text(&c.ty)));
                }
                _ => {}
            }
        }
        return;
    };
    let names: Name = path.segments.iter().map(|s| s.ident.to_string()).collect();
    let of_crate = krate.resolve(module, &names, 8);
    let public_trait = of_crate.as_ref().and_then(|t| krate.primary(t));
    let derived = names.last().is_some_and(|n| n == "StructuralPartialEq");
    if derived || hidden(&i.attrs) || of_crate.is_some() && public_trait.is_none() {
        return;
    }
    let last = path.segments.last().map(text).unwrap_or_default();
    let (g, w) = generics(&i.generics);
    if let Some(at) = owner.or(public_trait) {
        lines.insert(format!("{at}: impl{g} {last} for {}{w}", text(&i.self_ty)));
    }
}

/// The listing of an expanded crate.
fn listing(expanded: &str) -> Result<String, String> {
    let file = syn::parse_file(expanded).map_err(|e| format!("the expanded crate: {e}"))?;
    let mut krate = Crate::default();
    krate.add(vec![], file.items);
    krate.walk(&[], &[], 16);
    let mut lines = BTreeSet::new();
    for (item, names) in &krate.public {
        let (Some(primary), Some(it)) = (krate.primary(item), krate.items.get(item)) else { continue };
        describe(&primary, it, &mut lines);
        for other in names.iter().map(|n| outside(n)).filter(|n| *n != primary) {
            lines.insert(format!("{other}: use {primary}"));
        }
    }
    for (module, items) in &krate.modules {
        for item in items {
            if let Item::Impl(i) = item {
                describe_impl(&krate, module, i, &mut lines);
            }
        }
    }
    Ok(lines.into_iter().map(|l| l + "\n").collect())
}

#[cfg(test)]
mod tests {
    use super::listing;

    #[test]
    fn what_is_public_is_listed_once() {
        let source = r#"
            mod inner {
                #[non_exhaustive]
                pub struct A<'a, T> where T: Clone { pub x: &'a [T], y: Option<u8> }
                impl<'a, T: Clone> A<'a, T> {
                    pub const fn new(x: &'a [T]) -> Self { loop {} }
                    pub(crate) fn own(&self) {}
                }
                impl<'a, T: Clone> Clone for A<'a, T> { fn clone(&self) -> Self { loop {} } }
                impl Private for A<'_, u8> {}
                impl crate::ops::Run for Unreachable { unsafe fn run(&self, n: [usize; 3]) -> Result<(), String> { loop {} } }
                trait Private {}
                pub struct Unreachable;
            }
            pub mod ops {
                pub use crate::inner::A;
                pub trait Run: Send + Sync { unsafe fn run(&self, n: [usize; 3]) -> Result<(), String>; fn more(&self) {} }
                impl<T: Run + ?Sized> Run for Box<T> { unsafe fn run(&self, n: [usize; 3]) -> Result<(), String> { loop {} } }
                #[doc(hidden)] pub fn secret() {}
                pub enum E { One, Two { n: u32 }, Three(Box<dyn Fn(u8) -> u8>) }
            }
            pub use inner::A;
            pub use ops::*;
        "#;
        let want = "\
trefoil::A: #[non_exhaustive] struct<'a, T> where T: Clone
trefoil::A: has private fields
trefoil::A: impl<'a, T: Clone> Clone for A<'a, T>
trefoil::A::new: const fn new(x: &'a [T]) -> Self
trefoil::A::x: field &'a [T]
trefoil::E: use trefoil::ops::E
trefoil::Run: use trefoil::ops::Run
trefoil::ops::A: use trefoil::A
trefoil::ops::E: enum
trefoil::ops::E::One: variant
trefoil::ops::E::Three: variant(Box<dyn Fn(u8) -> u8>)
trefoil::ops::E::Two: variant { n: u32 }
trefoil::ops::Run: impl<T: Run + ?Sized> Run for Box<T>
trefoil::ops::Run: trait: Send + Sync
trefoil::ops::Run::more: fn more(&self) (provided)
trefoil::ops::Run::run: unsafe fn run(&self, n: [usize; 3]) -> Result<(), String>
";
        assert_eq!(listing(source).unwrap(), want);
    }
}
