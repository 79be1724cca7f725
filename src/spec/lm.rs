//! Kernels of language models.

use super::kernels;

kernels! {
    family: Lm;
}
