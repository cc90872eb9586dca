extends: plain
title: Plain PyTorch modules, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
expandable_segments: true
