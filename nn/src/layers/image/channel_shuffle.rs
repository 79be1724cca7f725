//! Channels exchanged between groups.

use crate::core::error::Result;
use crate::core::tensor::Tensor;
use crate::layers::spatial::{named, positive};
use crate::module::Layer;

/// Channels of groups dealt out in turn, `torch.nn.ChannelShuffle`: `[B, C, ..]`, of the same shape (ShuffleNet; Zhang et al., 2018). Between two
/// grouped convolutions it lets the groups of the second see channels of all groups of the first.
///
/// Errors of `forward`: rank below 3; channels that the groups do not divide.
#[derive(Debug, Clone, Copy)]
pub struct ChannelShuffle {
    groups: usize,
}

impl ChannelShuffle {
    /// Of `groups` groups. Errors: 0.
    pub fn new(groups: usize) -> Result<Self> {
        positive("ChannelShuffle", "groups", &[groups])?;
        Ok(ChannelShuffle { groups })
    }
}

impl Layer for ChannelShuffle {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        named("ChannelShuffle", x.channel_shuffle(self.groups))
    }
}
