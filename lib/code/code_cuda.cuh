/* code_cuda.cuh - the codes of code.h on a GPU, with the same bytes: the functions code_* of struct cuda_math
 * (device/cuda.h). A code is made of the formulas of code_formula.h. */
#ifndef CODE_CODE_CUDA_CUH
#define CODE_CODE_CUDA_CUH

#include "device/device_cuda.cuh"

int code_cuda_round(const struct cuda_code *c, const struct cuda_code_part *p, uint32_t place,
                    uint8_t *codes, struct cuda_stream *s, struct err *err);
int code_cuda_join(const struct cuda_code *c, const struct cuda_code_part *p, const uint8_t *codes,
                   size_t stride, uint32_t n_codes, uint8_t *out, struct cuda_stream *s,
                   struct err *err);
int code_cuda_sum(const struct cuda_code *c, const struct cuda_code_part *p,
                  const struct cuda_code_tree *t, uint8_t *out, struct cuda_stream *s,
                  struct err *err);
int code_cuda_read(const struct cuda_code *c, const struct cuda_code_part *p, const uint8_t *in,
                   struct cuda_stream *s, struct err *err);

#endif
