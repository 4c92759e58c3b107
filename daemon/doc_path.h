/* doc_path.h - where the documents of trainerd are on this host. Threads: any. */
#ifndef DAEMON_DOC_PATH_H
#define DAEMON_DOC_PATH_H

#include <stddef.h>

/* Copies a text to out [n]; a word (up to a blank or line break) that ends with ".md" is the path of a document in
 * the source tree, and is replaced by that of the installed document (PREFIX/share/doc/trainerd), or of the one in the source tree of this program. Where neither
 * exists, the word stays. The text is cut if it is too long. */
void doc_path_replace(const char *text, char *out, size_t n);

#endif
