//! Operations of matrices and sequences.

use super::Arg::*;
use super::{M, Row, same_bits};
use trefoil::DType;
use trefoil::ops::language_model::LogitProcessors;
use trefoil::ops::linalg::Triangular;
use trefoil::ops::random::Rng;
use trefoil_nn::{PagedCache, Result, SelectiveScanOptions, Tensor};

/// A symmetric positive definite matrix of any square one.
fn definite(a: &Tensor) -> Result<Tensor> {
    let n = a.shape()[a.rank() - 1];
    a.matmul(&a.transpose(-2, -1)?)?.add(&Tensor::eye(a.device(), a.dtype(), n)?)
}

/// Matrices that are factored, scans of states, attention of decoding steps and choice of tokens.
pub(super) fn matrices_and_sequences() -> Vec<Row> {
    const A: &[usize] = &[2, 4, 4];
    const S: &[usize] = &[2, 5, 2, 3];
    rows! {
        "cholesky" [F(A)] |t| [definite(&t[0])?.cholesky(false)?];
        "cholesky_ex" [F(A)] |t| <[Tensor; 2]>::from(definite(&t[0])?.cholesky_ex(true)?);
        "solve_triangular" [F(A), F(&[2, 4, 3])] |t| [t[0].solve_triangular(&t[1], Triangular::lower())?];
        "lu_factor" [F(A)] |t| {
            let f = t[0].lu_factor()?;
            [f.lu, f.pivots, f.info]
        };
        "ldl_factor" [F(A)] |t| {
            let f = t[0].ldl_factor()?;
            [f.ld, f.pivots, f.info]
        };
        "solve" [F(A), F(&[2, 4, 3])] |t| [definite(&t[0])?.solve(&t[1])?];
        "solve_ex" [F(A), F(&[2, 4, 3])] |t| <[Tensor; 2]>::from(definite(&t[0])?.solve_ex(&t[1])?);
        "inv" [F(A)] |t| [definite(&t[0])?.inv()?];
        "inv_ex" [F(A)] |t| <[Tensor; 2]>::from(definite(&t[0])?.inv_ex()?);
        "det" [F(A)] |t| [definite(&t[0])?.det()?];
        "slogdet" [F(A)] |t| <[Tensor; 2]>::from(definite(&t[0])?.slogdet()?);
        "qr" [F(&[2, 5, 3])] |t| <[Tensor; 2]>::from(t[0].qr()?);
        "lstsq" [F(&[2, 5, 3]), F(&[2, 5, 2])] |t| [t[0].lstsq(&t[1])?];
        "eigh" [F(A)] |t| <[Tensor; 2]>::from(definite(&t[0])?.eigh(false)?);
        "eigh_ex" [F(A)] |t| <[Tensor; 3]>::from(definite(&t[0])?.eigh_ex(true)?);
        "eigvalsh" [F(A)] |t| [definite(&t[0])?.eigvalsh(false)?];
        "svd_ex" [F(&[2, 3, 5])] |t| <[Tensor; 4]>::from(t[0].svd_ex()?);
        "svdvals_ex" [F(A)] |t| <[Tensor; 2]>::from(t[0].svdvals_ex()?);
        "matrix_exp" [F(A)] |t| [t[0].matrix_exp()?];
        "newton_schulz" [F(&[4, 6])] |t| [t[0].newton_schulz(5)?];
        "einsum" [F(A), F(&[2, 4, 3])] |t| [Tensor::einsum("bij,bjk->ik", &[&t[0], &t[1]])?];
        "associative_scan" [F(&[2, 5, 3]), F(&[2, 5, 3])] |t| [t[0].associative_scan(&t[1], false)?];
        "gla_scan" [F(S), F(S), F(&[2, 5, 2, 4]), F(&[2, 5, 2]), F(&[2, 2, 4, 3])] |t|
            <[Tensor; 2]>::from(t[0].gla_scan(&t[1], &t[2], &t[3], Some(&t[4].detach()))?);
        "gated_delta_scan" [F(S), F(S), F(S), F(&[2, 5, 2]), F(&[2, 5, 2]), F(&[2, 2, 3, 3])] |t|
            <[Tensor; 2]>::from(t[0].gated_delta_scan(&t[1], &t[2], &t[3], &t[4], Some(&t[5].detach()))?);
        "selective_scan" [F(&[2, 5, 3]), F(&[2, 5, 3]), F(&[3, 4]), F(&[2, 5, 4]), F(&[2, 5, 4]), F(&[3]), F(&[2, 5, 3])] |t| {
            let options = SelectiveScanOptions { d: Some(&t[5]), z: Some(&t[6]), ..Default::default() };
            <[Tensor; 2]>::from(t[0].selective_scan(&t[1], &t[2], &t[3], &t[4], &options)?)
        };
        "ssd_scan" [F(S), F(&[2, 5, 2]), F(&[2]), F(&[2, 5, 1, 4]), F(&[2, 5, 1, 4]), F(&[2])] |t|
            <[Tensor; 2]>::from(t[0].ssd_scan(&t[1], &t[2], &t[3], &t[4], Some(&t[5]), None)?);
        "flash_decode" [F(&[2, 4, 2, 4]), F(&[2, 2, 5, 4]), F(&[2, 2, 5, 4]), Count(&[2], 5)] |t| {
            let one = t[0].narrow(2, 0, 1)?;
            [one.flash_decode(&t[1], &t[2], Some(&t[3]), None)?, t[0].flash_decode(&t[1], &t[2], None, Some(0.3))?]
        };
        "append" [F(&[4, 2, 3]), F(&[4, 2, 3]), Count(&[4], 8)] |t| {
            // In place, so into tensors of its own, which are whole.
            let zeros = || Tensor::zeros(t[0].device(), t[0].dtype(), &[3, 4, 2, 3]);
            let (keys, values, none) = (zeros()?, zeros()?, &t[2]);
            PagedCache { keys: &keys, values: &values, block_table: none, seq_lens: none }.append(&t[0], &t[1], &t[2])?;
            [keys, values]
        };
        "paged_attention" [F(&[2, 4, 3]), F(&[6, 4, 2, 3]), F(&[6, 4, 2, 3]), Ids(&[2, 3], 6), Count(&[2], 12)] |t| {
            let cache = PagedCache {
                keys: &t[1], values: &t[2], block_table: &t[3].to_dtype(DType::I32)?, seq_lens: &t[4],
            };
            [t[0].paged_attention(&cache, None, None)?]
        };
        "process_logits" [F(M), Count(&[4, 2], 6)] |t|
            [t[0].process_logits(&LogitProcessors::new().repetition_penalty(1.3).top_k(3), Some(&t[1]))?];
        "sample_tokens" [F(M), Count(&[4, 2], 6)] |t|
            [t[0].sample_tokens(&LogitProcessors::new().top_p(0.9), Rng::new(3).at(1, 0), Some(&t[1]))?];
    }
}

#[test]
fn operations_of_matrices_and_sequences() {
    same_bits(&matrices_and_sequences());
}
