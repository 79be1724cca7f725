//! Kernels of recurrent networks.

use super::kernels;

kernels! {
    family: Rnn;
}
