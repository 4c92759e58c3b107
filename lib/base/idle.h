/* idle.h - makes the resident memory of a process that waits small. Threads: any. */
#ifndef BASE_IDLE_H
#define BASE_IDLE_H

/* Unmaps the read-only pages of the program and of its libraries, most of which only the start needs (relocation,
 * symbol tables, initializers), and returns free heap pages to the kernel. The contents do not change: the next
 * access maps a page again from the page cache, or reads it from the file if the kernel has reclaimed it. Breakpoints
 * that a debugger has set in the code are lost. */
void idle_release_memory(void);

#endif
