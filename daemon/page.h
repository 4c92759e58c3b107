/* page.h - the files of the status page (daemon/page/), which the Makefile embeds. */
#ifndef DAEMON_PAGE_H
#define DAEMON_PAGE_H

#include <stddef.h>

struct page_file {
    const char *name; /* "page.html": the name of the file */
    const unsigned char *text;
    const size_t *bytes;
};
extern const struct page_file page_files[];
extern const size_t n_page_files;

#endif
