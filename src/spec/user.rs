//! What a launch passes for the parameters of a user's kernel.

use super::Role;
use super::prototype::prototypes;
use crate::dtype::DType;

/// A parameter of a user's kernel.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct UserParameter {
    pub(crate) name: String,
    pub(crate) kind: UserKind,
}

/// What a launch passes for a parameter of a user's kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum UserKind {
    /// A pointer that is read, to elements of this dtype.
    In(DType),
    /// A pointer that is written.
    Out(DType),
    /// `gk_i64 NAME_len`: the number of elements of the buffer `NAME`, the parameter of this number. Passed by the launch itself.
    LengthOf(usize),
    /// A scalar.
    Scalar(Role),
}

/// The parameters of the kernel `entry` of a user's text, compiled for `dtype`; what is wrong where there is no such kernel, or more than one,
/// or a parameter that a launch cannot check.
pub(crate) fn user_prototype(text: &str, entry: &str, dtype: DType) -> Result<Vec<UserParameter>, String> {
    let mut found = prototypes(text)?.into_iter().filter(|(name, _)| name == entry);
    let (Some((_, list)), None) = (found.next(), found.next()) else {
        return Err(format!("no GK_KERNEL({entry}), or more than one"));
    };
    let mut params: Vec<UserParameter> = vec![];
    for (ty, name) in list {
        let kind = match pointer(&ty, dtype) {
            Some(kind) => kind?,
            None => match name.strip_suffix("_len").filter(|_| ty == "gk_i64") {
                Some(buffer) => params
                    .iter()
                    .position(|p| p.name == buffer && !matches!(p.kind, UserKind::Scalar(_)))
                    .map(UserKind::LengthOf)
                    .ok_or_else(|| {
                        format!("{name} is the length of a buffer `{buffer}` that does not stand before it")
                    })?,
                None => UserKind::Scalar(scalar(&ty, dtype).ok_or_else(|| format!("type `{ty}` of {name}"))?),
            },
        };
        if name.is_empty() || !name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()) {
            return Err(format!("`{name}` is not a parameter's name"));
        }
        params.push(UserParameter { name, kind });
    }
    Ok(params)
}

/// The kind of a pointer parameter; `None` for what is none.
fn pointer(ty: &str, dtype: DType) -> Option<Result<UserKind, String>> {
    let (make, element): (fn(DType) -> UserKind, _) = match ty.strip_suffix(')')?.split_once('(')? {
        ("GK_IN", t) => (UserKind::In, t),
        ("GK_OUT", t) => (UserKind::Out, t),
        _ => return Some(Err(format!("parameter type `{ty}`"))),
    };
    let element = match element {
        "gk_t" => Some(dtype),
        "gk_f" => Some(arithmetic(dtype)),
        "float" => Some(DType::F32),
        "double" => Some(DType::F64),
        "int" | "gk_u32" => Some(DType::I32),
        "gk_i64" | "gk_u64" => Some(DType::I64),
        "gk_u8" => Some(DType::U8),
        _ => None,
    };
    Some(element.map(make).ok_or_else(|| format!("element type of `{ty}`")))
}

/// The dtype whose elements are `gk_f` in a unit for `dtype`.
fn arithmetic(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::Bf16 => DType::F32,
        DType::U8 => DType::I32,
        d => d,
    }
}

fn scalar(ty: &str, dtype: DType) -> Option<Role> {
    Some(match ty {
        "int" => Role::I32,
        "gk_u32" => Role::U32,
        "gk_i64" => Role::I64,
        "float" => Role::F32,
        "gk_f" => match arithmetic(dtype) {
            DType::F32 => Role::F32,
            DType::I32 => Role::I32,
            DType::I64 => Role::I64,
            _ => Role::Real,
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_prototype_says_what_a_launch_must_pass() {
        let text = "GK_KERNEL(k)(GK_IN(gk_t, x), gk_i64 x_len, GK_OUT(int, y), gk_f p, gk_u32 q) {}";
        let kinds =
            |dtype| user_prototype(text, "k", dtype).unwrap().into_iter().map(|p| p.kind).collect::<Vec<_>>();
        let (len, out, u32) = (UserKind::LengthOf(0), UserKind::Out(DType::I32), UserKind::Scalar(Role::U32));
        assert_eq!(kinds(DType::F16), [UserKind::In(DType::F16), len, out, UserKind::Scalar(Role::F32), u32]);
        assert_eq!(
            kinds(DType::F64),
            [UserKind::In(DType::F64), len, out, UserKind::Scalar(Role::Real), u32]
        );
        for (text, why) in [
            ("GK_KERNEL(other)(int a) {}", "no GK_KERNEL(k)"),
            ("GK_KERNEL(k)(int a) {} GK_KERNEL(k)(int b) {}", "more than one"),
            ("GK_KERNEL(k)(GK_DIMS(d)) {}", "GK_DIMS"),
            ("GK_KERNEL(k)(GK_IN(struct s, a)) {}", "element type"),
            ("GK_KERNEL(k)(gk_i64 x_len, GK_IN(gk_t, x)) {}", "before it"),
            ("GK_KERNEL(k)(double a) {}", "double"),
            ("GK_KERNEL(k)(int *a) {}", "not a parameter's name"),
            ("GK_KERNEL(k)(int) {}", "not a parameter"),
        ] {
            let e = user_prototype(text, "k", DType::F32).unwrap_err();
            assert!(e.contains(why), "{text}: {e}");
        }
        assert_eq!(
            user_prototype("GK_KERNEL(k)(void) {}", "k", DType::F32),
            Err("`void` is not a parameter".into())
        );
    }
}
