//! Runs a kernel: its blocks one after the other, the work-items of a block as coroutines that take turns.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ops::Range;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// Bytes of a work-item's stack. Sanitizers make frames several times as large.
const STACK_BYTES: usize = 512 << 10;

/// `host_dim` of device.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dim {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) z: u32,
}

impl Dim {
    pub(crate) fn count(self) -> Option<u32> {
        self.x.checked_mul(self.y)?.checked_mul(self.z)
    }

    /// The place of number `n` in so many, x fastest.
    fn place(self, n: u32) -> Dim {
        Dim { x: n % self.x, y: n / self.x % self.y, z: n / self.x / self.y }
    }
}

/// `host_item` of device.h.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Item {
    thread: Dim,
    block: Dim,
    blocks: Dim,
    threads: Dim,
    lane: u32,
}

/// `host_calls` of device.h.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Calls {
    item: extern "C" fn() -> *const Item,
    barrier: extern "C" fn(),
    permute: extern "C" fn(u32, u32) -> u32,
    gather: unsafe extern "C" fn(*const u32, u32, *mut u32),
}

/// What kernels call.
pub(crate) static CALLS: Calls = Calls { item, barrier, permute, gather };

/// Why a work-item waits.
#[derive(Clone, Copy)]
enum Wait {
    Barrier,
    /// For the value of another lane; `value` is what it gives itself.
    Permute {
        lane: u32,
        value: u32,
    },
    /// For the words of all lanes, in `all`; `mine` are its own.
    Gather {
        mine: *const u32,
        words: usize,
        all: *mut u32,
    },
}

#[derive(Clone, Copy)]
enum State {
    /// Goes on with this answer to what it has waited for.
    Ready(u32),
    Waits(Wait),
    Ended,
}

/// A work-item that has begun: what it asks of itself, and the way out of its coroutine.
struct Running {
    item: *const Item,
    yielder: *const Yielder<u32, Wait>,
}

thread_local! {
    static NOW: Cell<*const Running> = const { Cell::new(std::ptr::null()) };
    /// Stacks of coroutines that have ended.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(vec![]) };
}

extern "C" fn item() -> *const Item {
    // SAFETY: kernels run in coroutines of this module only, which set it.
    unsafe { (*NOW.get()).item }
}

extern "C" fn barrier() {
    wait(Wait::Barrier);
}

extern "C" fn permute(lane: u32, value: u32) -> u32 {
    wait(Wait::Permute { lane, value })
}

/// # Safety
/// `mine` has `words` words, `all` room for as many of each lane.
unsafe extern "C" fn gather(mine: *const u32, words: u32, all: *mut u32) {
    wait(Wait::Gather { mine, words: words as usize, all });
}

fn wait(why: Wait) -> u32 {
    let running = NOW.get();
    // SAFETY: as in `item`; the coroutine's own frame holds it.
    let answer = unsafe { (*(*running).yielder).suspend(why) };
    // Others have run meanwhile.
    NOW.set(running);
    answer
}

/// A kernel as units export it: called with the addresses of its arguments.
pub(crate) type Entry = unsafe extern "C" fn(*mut *mut c_void);

/// A launch.
pub(crate) struct Launch<'a> {
    pub(crate) kernel: Entry,
    pub(crate) arguments: *mut *mut c_void,
    pub(crate) blocks: Dim,
    pub(crate) threads: Dim,
    /// Lanes of a wavefront.
    pub(crate) lanes: u32,
    /// Makes shared memory what a block finds.
    pub(crate) fill_shared: &'a dyn Fn(),
}

impl Launch<'_> {
    /// Runs all blocks. Errors: in words, what a kernel did that hardware does not define.
    pub(crate) fn run(&self) -> Result<(), String> {
        let sizes = (self.blocks.count(), self.threads.count());
        let (Some(blocks), Some(threads)) = sizes else { return Err("too many work-items".into()) };
        for n in 0..blocks {
            (self.fill_shared)();
            let block = self.blocks.place(n);
            let items = (0..threads).map(|t| Item {
                thread: self.threads.place(t),
                block,
                blocks: self.blocks,
                threads: self.threads,
                lane: t % self.lanes,
            });
            let items: Vec<Item> = items.collect();
            Block::new(self, &items)?.run().map_err(|why| format!("block {block:?}: {why}"))?;
        }
        Ok(())
    }
}

/// The work-items of a block.
struct Block {
    coroutines: Vec<Coroutine<u32, Wait, (), DefaultStack>>,
    states: Vec<State>,
    lanes: usize,
}

fn stack() -> Result<DefaultStack, String> {
    match STACKS.with_borrow_mut(Vec::pop) {
        Some(stack) => Ok(stack),
        None => DefaultStack::new(STACK_BYTES).map_err(|e| format!("no stack for a work-item: {e}")),
    }
}

impl Block {
    fn new(launch: &Launch<'_>, items: &[Item]) -> Result<Self, String> {
        let (kernel, arguments) = (launch.kernel, launch.arguments);
        let begin = |item: &Item| -> Result<_, String> {
            let item = std::ptr::from_ref(item);
            Ok(Coroutine::with_stack(stack()?, move |yielder: &Yielder<u32, Wait>, _| {
                let running = Running { item, yielder };
                NOW.set(&running);
                // SAFETY: the caller of the launch vouches for kernel and arguments; items outlive the block.
                unsafe { kernel(arguments) }
            }))
        };
        let coroutines = items.iter().map(begin).collect::<Result<Vec<_>, _>>()?;
        Ok(Block {
            states: vec![State::Ready(0); coroutines.len()],
            coroutines,
            lanes: launch.lanes as usize,
        })
    }

    /// Runs to the end, from barrier to barrier.
    fn run(&mut self) -> Result<(), String> {
        let all = self.states.len();
        let waves: Vec<Range<usize>> =
            (0..all).step_by(self.lanes).map(|first| first..all.min(first + self.lanes)).collect();
        for backwards in [false, true].into_iter().cycle() {
            for n in 0..waves.len() {
                let wave = &waves[if backwards { waves.len() - 1 - n } else { n }];
                self.run_wave(wave.clone(), backwards)?;
            }
            match self.states.iter().filter(|s| matches!(s, State::Ended)).count() {
                0 => self.states.fill(State::Ready(0)),
                n if n == all => break,
                n => return Err(format!("{n} of {all} work-items have ended, the others wait at a barrier")),
            }
        }
        Ok(())
    }

    /// Runs a wavefront until all its lanes wait at a barrier or have ended.
    fn run_wave(&mut self, wave: Range<usize>, backwards: bool) -> Result<(), String> {
        loop {
            for n in 0..wave.len() {
                let i = if backwards { wave.end - 1 - n } else { wave.start + n };
                if let State::Ready(answer) = self.states[i] {
                    self.states[i] = match self.coroutines[i].resume(answer) {
                        CoroutineResult::Yield(why) => State::Waits(why),
                        CoroutineResult::Return(()) => State::Ended,
                    };
                }
            }
            if !self.exchange(wave.clone())? {
                return Ok(());
            }
        }
    }

    /// Gives all lanes of a wavefront the words of all, if they ask for them; whether they did.
    fn gather(&mut self, now: &[State], first: usize) -> Result<bool, String> {
        let asks = |s: &State| match *s {
            State::Waits(Wait::Gather { mine, words, all }) => Some((mine, words, all)),
            _ => None,
        };
        let asking: Vec<_> = now.iter().filter_map(asks).collect();
        let Some(&(_, words, _)) = asking.first() else { return Ok(false) };
        if asking.len() < self.lanes || asking.iter().any(|a| a.1 != words) {
            let (n, lanes) = (asking.len(), self.lanes);
            return Err(format!("a matrix instruction that {n} lanes of {lanes} reach together"));
        }
        for (lane, &(mine, ..)) in asking.iter().enumerate() {
            for &(_, _, all) in &asking {
                // SAFETY: the caller of `gather` vouches for the places, which lie on stacks of suspended work-items.
                unsafe { all.add(lane * words).copy_from_nonoverlapping(mine, words) };
            }
        }
        self.states[first..first + now.len()].fill(State::Ready(0));
        Ok(true)
    }

    /// Answers the lanes of a wavefront that ask others; whether there were any.
    fn exchange(&mut self, wave: Range<usize>) -> Result<bool, String> {
        let now = self.states[wave.clone()].to_vec();
        let mut any = self.gather(&now, wave.start)?;
        for (i, state) in now.iter().enumerate() {
            let State::Waits(Wait::Permute { lane, .. }) = state else { continue };
            // The hardware takes the number modulo the width.
            let from = *lane as usize % self.lanes;
            let answer = match now.get(from) {
                Some(State::Waits(Wait::Permute { value, .. })) => *value,
                Some(State::Ended) => {
                    return Err(format!("lane {i} reads lane {from}, which has ended"));
                }
                Some(_) => return Err(format!("lane {i} reads lane {from}, which waits at a barrier")),
                None => return Err(format!("lane {i} reads lane {from}, which the block does not have")),
            };
            self.states[wave.start + i] = State::Ready(answer);
            any = true;
        }
        if any && now.iter().any(|s| matches!(s, State::Waits(Wait::Barrier))) {
            return Err("lanes of one wavefront wait at a barrier and for each other".into());
        }
        Ok(any)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        for mut coroutine in self.coroutines.drain(..) {
            if !coroutine.done() {
                // SAFETY: its frames are a kernel's, which own nothing, and `Running`.
                unsafe { coroutine.force_reset() };
            }
            STACKS.with_borrow_mut(|stacks| stacks.push(coroutine.into_stack()));
        }
    }
}
