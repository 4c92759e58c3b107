/* ras.h - what NCCL's RAS knows about an all-reduce that does not complete.
 *
 * RAS is a thread of NCCL in each process of a job, connected to those of the other processes. It
 * answers text queries at NCCL_RAS_ADDR (comm/nccl_env.h sets an address of this process). A query
 * blocks for at most one second. Threads: any. */
#ifndef COMM_RAS_H
#define COMM_RAS_H

#include <stddef.h>

enum { COMM_RAS_BYTES = 640 };

/* Writes a clause for an error message: "NCCL reports: ...", or the reason why it reports nothing. */
void comm_ras_query(char *out, size_t n);

/* Extracts the clause from an answer: the text under its headings "Errors" and "Warnings". */
void comm_ras_extract(const char *answer, char *out, size_t n);

#endif
