/* member_priv.h - declarations that the files of the folder share. */
#ifndef MEMBER_MEMBER_PRIV_H
#define MEMBER_MEMBER_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "member/member.h"

struct arena;

/* Returns a copy; the strings are in `a`. */
struct member_ident member_ident_copy(const struct member_ident *i, struct arena *a);

/* Writes which keys of two jobs (JSON objects; may be anything) differ, with both values, to the n > 0
 * bytes at `out`. Returns false if none does, or a text is not JSON. */
bool member_job_difference(const char *theirs, const char *ours, char *out, size_t n);
/* Returns true if the identities agree. Devices 0: that task is a parameter server; then the fields
 * that depend on the devices of training are not compared. Else writes the first difference, both values and the
 * remedy: "the job differs: it has 'a', the coordinator has 'b'; ...". */
bool member_ident_agrees(const struct member_ident *theirs, uint32_t their_devices,
                         const struct member_ident *ours, uint32_t our_devices, char *out,
                         size_t n_out);

#endif
