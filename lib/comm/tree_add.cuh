/* tree_add.cuh - adds the vectors of all ranks along the tree over lanes: math->add_tree of
 * device/cuda.h. */
#ifndef COMM_TREE_ADD_CUH
#define COMM_TREE_ADD_CUH

#include "device/device_cuda.cuh"

int comm_tree_add(const struct cuda_tree *t, struct cuda_stream *s, struct err *err);

#endif
