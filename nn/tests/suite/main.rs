//! The tests of layers, tensors, training and files: one program, since each would link the library again.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod audio;
mod autograd;
mod auxiliary;
mod capture;
mod checkpoint_plans;
mod compare;
mod config;
mod config_data;
mod config_graph;
mod config_mesh;
mod config_table;
mod convergence;
mod data;
mod derive;
mod distance;
mod every_layer;
mod experts;
mod field;
#[cfg(feature = "archives")]
mod files;
mod first_kernel;
#[cfg(feature = "archives")]
mod foreign_files;
mod fourier;
mod fused_ops;
mod gradients;
mod graph;
mod inspect;
mod layers;
mod layers_activation;
mod layers_attention;
mod layers_capsule;
mod layers_crf;
mod layers_decoding;
mod layers_diffusion;
mod layers_experts;
mod layers_graph;
mod layers_graph_aggregation;
mod layers_graph_blocks;
mod layers_image;
mod layers_image_training;
mod layers_local_learning;
mod layers_memory;
mod layers_mesh;
mod layers_mesh_pool;
mod layers_norm;
mod layers_quantum;
mod layers_reservoir;
mod layers_residual;
mod layers_sequence;
mod layers_sequence_training;
mod layers_sparse;
mod layers_special;
mod layers_specialized;
mod layers_spiking;
mod layers_state_space;
#[cfg(feature = "archives")]
mod limits;
mod linalg;
#[cfg(feature = "loom")]
mod loom;
#[cfg(feature = "loom")]
mod loom_network;
mod lora;
mod losses;
mod losses_networks;
mod losses_sets_and_pairs;
mod memory_format;
mod mesh;
mod metrics;
mod model;
mod models_generation;
mod models_language;
mod models_vision;
mod network;
mod network_types;
mod operator_properties;
mod operators;
mod ops_image;
mod optim;
mod optim_adaptive;
mod optim_matrices;
mod optim_sparse;
mod out_of_range;
mod pages;
mod profile;
mod pytorch_operators;
mod run_folder;
mod second_derivatives;
mod second_derivatives_golden;
mod second_order;
mod second_order_training;
mod softmax_variants;
mod state_map;
mod state_space;
mod tensor_ops;
mod training;
mod training_features;
mod traps;
#[cfg(feature = "parquet")]
mod typed_tables;
mod views;
#[cfg(feature = "volta")]
mod volta;
#[cfg(feature = "volta")]
mod volta_layers;
