//! Graphs: edges with the lists by which operations find them, message passing, attention along edges, reductions of groups.

mod attention;
mod groups;
mod messages;
mod normalize;
mod structure;

pub use self::groups::Groups;
pub use self::structure::Graph;
