//! The macro that declares operand structs.

/// Declares a struct of public fields that may gain more of them: `#[non_exhaustive]`, with a constructor and setters.
///
/// `new` takes the fields in order, less those that are `Option<T>` (absent) or have a default (`name: Type = value`). Each of these gets a
/// setter of its name: an optional one takes a value or an `Option`. One with a parameter is an [`Operand`](crate::ops::operand::Operand).
macro_rules! io_struct {
    ($(#[$m:meta])* pub struct $name:ident $(<$($g:tt),*>)? { $($body:tt)* }) => {
        io_struct! { @fields ($(#[$m])*) $name ($($($g),*)?) () () () () $($body)* }
    };
    (@fields $meta:tt $name:ident $g:tt ($($all:tt)*) $required:tt ($($optional:tt)*) $default:tt
        $(#[$d:meta])* pub $f:ident : Option<$t:ty>, $($rest:tt)*) => {
        io_struct! { @fields $meta $name $g
            ($($all)* $(#[$d])* $f: Option<$t>,) $required ($($optional)* $(#[$d])* $f: $t,) $default $($rest)* }
    };
    (@fields $meta:tt $name:ident $g:tt ($($all:tt)*) $required:tt $optional:tt ($($default:tt)*)
        $(#[$d:meta])* pub $f:ident : $t:ty = $v:expr, $($rest:tt)*) => {
        io_struct! { @fields $meta $name $g
            ($($all)* $(#[$d])* $f: $t,) $required $optional ($($default)* $(#[$d])* $f: $t = $v,) $($rest)* }
    };
    (@fields $meta:tt $name:ident $g:tt ($($all:tt)*) ($($required:tt)*) $optional:tt $default:tt
        $(#[$d:meta])* pub $f:ident : $t:ty, $($rest:tt)*) => {
        io_struct! { @fields $meta $name $g
            ($($all)* $(#[$d])* $f: $t,) ($($required)* $f: $t,) $optional $default $($rest)* }
    };
    (@fields ($($meta:tt)*) $name:ident ($($g:tt),*)
        ($($(#[$d:meta])* $f:ident : $t:ty,)*)
        ($($rf:ident : $rt:ty,)*)
        ($($(#[$od:meta])* $of:ident : $ot:ty,)*)
        ($($(#[$dd:meta])* $df:ident : $dt:ty = $v:expr,)*)
    ) => {
        $($meta)*
        #[non_exhaustive]
        pub struct $name<$($g),*> {
            $( $(#[$d])* pub $f: $t, )*
        }

        operand_struct! { $name ($($g),*) $($f: $t,)* }

        // A setter may have the name of an operator's method.
        #[allow(clippy::should_implement_trait)]
        impl<$($g),*> $name<$($g),*> {
            /// What is required; the other fields are absent or have their defaults until they are set.
            #[allow(clippy::too_many_arguments, reason = "an operation may need as many operands")]
            pub const fn new($($rf: $rt),*) -> Self {
                $name { $($rf,)* $($of: None,)* $($df: $v,)* }
            }

            $(
                $(#[$od])*
                #[must_use]
                pub fn $of(mut self, $of: impl Into<Option<$ot>>) -> Self {
                    self.$of = $of.into();
                    self
                }
            )*
            $(
                $(#[$dd])*
                #[must_use]
                pub fn $df(mut self, $df: $dt) -> Self {
                    self.$df = $df;
                    self
                }
            )*
        }
    };
}
