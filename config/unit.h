/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The user that runs the engine of this host, by its systemd unit, with the folders and the process
 * of the unit; becoming that user, to see files as it does; looking up names. One thread.
 */
#ifndef CONFIG_UNIT_H
#define CONFIG_UNIT_H

#include <grp.h>
#include <pwd.h>
#include <stdbool.h>

#include "config/limits.h"

#define UNIT_NAME "peercache-engine.service"
#define UNIT_FOLDERS_BYTES 1024

struct unit {
	char user[NAME_BYTES_MAX]; /* "root" if the unit names none */
	/* by spaces: the folders that systemd makes for it, and those of ReadWritePaths= */
	char makes[UNIT_FOLDERS_BYTES], writes[UNIT_FOLDERS_BYTES];
	bool strict; /* all others are read-only */
	long pid;    /* of its process; 0: it does not run */
};

#define UNIT_ANSWER_S "5" /* seconds that systemctl has to answer */
/*
 * Asks systemctl. Returns 0; -ENOENT: this host lacks that unit, or systemd; -ETIMEDOUT: systemctl
 * has not answered, so whether there is a unit is not known.
 */
int unit_read(struct unit *ret);
/* Does systemd make that folder, for the user of the unit, when it starts the unit? */
bool unit_makes(const struct unit *unit, const char *folder);
/* May the unit write there, as far as its mounts are known? Modes are not examined. */
bool unit_writes(const struct unit *unit, const char *folder);

/*
 * The entry of a name, in a buffer of libc that grows with it and lasts until the next call.
 * -ENOENT: this host has none; another -errno: it cannot be looked up now. No other thread of the
 * process may look up names.
 */
int user_find(const char *name, const struct passwd **ret);
int group_find(const char *name, const struct group **ret);
/* Can this process see files as that user? 0; -EPERM: only root and that user; as user_find(). */
int user_allowed(const char *name);
/* Becomes that user with its groups, for good. The same results, or another -errno. */
int user_become(const char *name);

#endif
