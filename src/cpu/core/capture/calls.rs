//! Calls that can be made again.

use crate::cpu::Kernels;
use crate::error::Result;
use crate::ops::operand::Visit;

/// A call of an operation with its arguments.
pub(super) trait Call: Send + Sync {
    /// Name of the operation.
    fn name(&self) -> &'static str;
    /// Makes the call.
    fn run(&self, kernels: &Kernels) -> Result<()>;
    /// Visits the views among its arguments.
    fn each(&mut self, visit: Visit<'_>);
}

/// A call of one operation.
pub(super) struct Recorded<A> {
    pub(super) name: &'static str,
    pub(super) args: A,
    pub(super) run: fn(&Kernels, &A) -> Result<()>,
    pub(super) each: fn(&mut A, Visit<'_>),
}

impl<A: Send + Sync> Call for Recorded<A> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(&self, kernels: &Kernels) -> Result<()> {
        (self.run)(kernels, &self.args)
    }

    fn each(&mut self, visit: Visit<'_>) {
        (self.each)(&mut self.args, visit);
    }
}

/// Implements a family's trait for the CPU backend: its kernels make the calls, which are written down while the calling thread records. The traits of
/// `Core` are implemented by hand.
macro_rules! recorded_ops {
    (Core $($rest:tt)*) => {};
    ($family:ident $tr:ident { $( fn $name:ident($($arg:ident : $ty:ty),*) -> $ret:ty; )* }) => {
        impl $tr for $crate::cpu::CpuBackend {
            $( fn $name(&self $(, $arg: $ty)*) -> $ret {
                $crate::cpu::recorded_call!(self, $name($($arg: $ty),*))
            } )*
        }
    };
}
pub(crate) use recorded_ops;

/// Makes a call by the kernels of a handle, and writes it down if the calling thread records.
macro_rules! recorded_call {
    ($cpu:expr, $name:ident($($arg:ident : $ty:ty),*)) => {
        if $cpu.records() {
            use $crate::ops::operand::Argument;
            let run: fn(&$crate::cpu::Kernels, &_) -> _ = |kernels, ($($arg,)*)| {
                $( let mut $arg = <$ty as Argument>::lend($arg); )*
                kernels.$name($(<$ty as Argument>::arg(&mut $arg)),*)
            };
            $cpu.record_call(stringify!($name), ($(<$ty as Argument>::own(&$arg),)*), run, |($($arg,)*), visit| {
                $( <$ty as Argument>::each($arg, visit); )*
            })
        } else {
            $cpu.kernels().$name($($arg),*)
        }
    };
}
pub(crate) use recorded_call;
