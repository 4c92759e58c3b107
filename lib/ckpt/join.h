/* join.h - copies a checkpoint with shard files to one with whole tensors, as a job without parameter servers
 * writes it, for programs that do not know shard files. Threads: any. */
#ifndef CKPT_JOIN_H
#define CKPT_JOIN_H

struct ckpt_info;
struct err;

/* Verifies the checkpoint `from` and copies it to the new folder `to`, whose parent exists: model.safetensors,
 * optimizer.safetensors, manifest.json. Tables are read and written in parts of a few MiB, whatever their size.
 * *out: the checkpoint that was read. On failure `to` is removed. Errors: ERR_EXISTS (`to` exists), those of
 * ckpt_verify(), ckpt_export(). */
int ckpt_join(const char *from, const char *to, struct ckpt_info *out, struct err *err);

#endif
