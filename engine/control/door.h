/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door of an engine that was started again with pages: until it opens, pages on disk are not
 * found, also later while members still send what was removed, and if pages are in memory no client
 * is accepted. Control plane's thread only.
 */
#ifndef CONTROL_DOOR_H
#define CONTROL_DOOR_H

struct control;

/*
 * Opens the memory of removals, also that of the engine before. Once the door opens, clients are
 * accepted, and pages that nothing proves are dropped. Returns 0 or a negative errno.
 * removals_close() closes it.
 */
int door_open(struct control *control);

#endif
