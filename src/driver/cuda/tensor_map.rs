//! Maps of tensors for the tensor memory accelerator of Hopper, made by the driver for each launch.

use std::ffi::c_void;

use cudarc::driver::sys as cu;

use super::preflight::{Api, function_table};
use crate::driver::TensorMap;
use crate::error::{GpuError, Result};

function_table! {
    /// What makes maps.
    TensorMapTable in cu -> CUresult {
        cuTensorMapEncodeTiled(
            *mut cu::CUtensorMap, cu::CUtensorMapDataType, u32, *mut c_void, *const u64, *const u64, *const u32, *const u32, cu::CUtensorMapInterleave,
            cu::CUtensorMapSwizzle, cu::CUtensorMapL2promotion, cu::CUtensorMapFloatOOBfill,
        );
    }
}

/// Numbers of a box along the inner two axes.
const BOX: u32 = 64;

/// A map as kernels take it: 128 bytes at a multiple of 64.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Encoded(cu::CUtensorMap);

impl Encoded {
    /// The map of a tensor, whose memory the device has.
    pub(super) fn of(api: &Api, map: &TensorMap) -> Result<Encoded> {
        let table = api
            .tensor_maps
            .as_ref()
            .map_err(|why| GpuError::driver("cuTensorMapEncodeTiled", 0, why.clone()))?;
        let mut encoded = Encoded(cu::CUtensorMap { opaque: [0; 16] });
        let (rank, steps) = (map.shape.len() as u32, [1u32; 3]);
        let address = (map.place.0.0 + map.place.1) as *mut c_void;
        // SAFETY: reads three extents and steps, two strides and three sizes of a box, writes one map. The address is not followed.
        let code = unsafe {
            (table.cuTensorMapEncodeTiled)(
                &mut encoded.0,
                cu::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
                rank,
                address,
                map.shape.as_ptr(),
                map.strides.as_ptr(),
                [BOX, BOX, 1].as_ptr(),
                steps.as_ptr(),
                cu::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                cu::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                cu::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                cu::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        api.check("cuTensorMapEncodeTiled", code).map(|()| encoded)
    }

    /// Where a launch reads it.
    pub(super) fn as_param(&self) -> *mut c_void {
        std::ptr::from_ref(&self.0).cast_mut().cast()
    }
}
