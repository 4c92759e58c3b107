/* build_commit.h - the commit of the source files; the Makefile writes it (scripts/commit). Only the programs are linked
 * with it, so that a commit does not make every test new. */
#ifndef DAEMON_BUILD_COMMIT_H
#define DAEMON_BUILD_COMMIT_H

extern const char build_commit[]; /* "commit 0123456789ab"; "" if the files are not in a git repository */

#endif
