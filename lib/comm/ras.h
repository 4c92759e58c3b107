/* ras.h - what NCCL's RAS knows of a sum that does not come.
 *
 * RAS is a thread of NCCL in each process of a job, connected to those of the others; it answers questions
 * in text at NCCL_RAS_ADDR (comm/nccl_env.h sees to it that this is the process's own). Who asks waits for a
 * second at most. Threads: any. */
#ifndef COMM_RAS_H
#define COMM_RAS_H

#include <stddef.h>

enum { COMM_RAS_BYTES = 640 };

/* A clause for a sentence: "NCCL says: ...", or that it says nothing, and why. */
void comm_ras_ask(char *out, size_t n);

/* The same of an answer: what stands under its headings "Errors" and "Warnings". */
void comm_ras_words(const char *answer, char *out, size_t n);

#endif
