/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of peercachectl. peercachectl.c parses the command line and calls one of them; each
 * returns the exit status of the program. One thread.
 */
#ifndef TOOLS_CTL_H
#define TOOLS_CTL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <json-c/json.h>

#include "config/json_read.h"
#include "engine/client/peercache.h"

#define DOCTOR_ARGUMENTS 120
#define DOCTOR_PEERS 15

struct ctl_run {
	const char *socket, *name_space, *output, *text;
	const char *group; /* --namespace; NULL: not given */
	bool help;         /* print what --help says of the command */
	bool json, once;
	bool cluster; /* clear: all hosts */
	unsigned timeout_ms;
	unsigned restart_ms; /* longest wait of restart */
	/* of doctor: --config and --set with their values, --peer, --root, --user */
	char *argument[DOCTOR_ARGUMENTS + 1];
	unsigned arguments;
	const char *peer[DOCTOR_PEERS + 1];
	unsigned peers;
	const char *root, *user;
	/* of keys */
	const char *record; /* file */
	bool gets;
	uint64_t seconds, max_bytes;
	uint64_t drain_seconds, drain_pid; /* pid 0: any */
	int64_t ttl_s;                     /* of quota; -1: not given */
	/* of put, get, exists, match, rm and clear; the others open it, if they need one */
	struct pc *pc;
	struct pc_channel *channel; /* of put, get, exists, match and rm */
	json_object *results; /* with `json`: an array, one object for each key of these commands */
};

/* ctl_file.c. `path`: "-" is standard input; NULL: ctl->text is stored. */
int ctl_put(struct ctl_run *ctl, const char *key, const char *path);
int ctl_get(struct ctl_run *ctl, const char *key);
int ctl_exists(struct ctl_run *ctl, const char *key);
/* ctl_restart.c: is the process `pid` of this name, cut to 15 characters? */
bool is_named(pid_t pid, const char *program);
int ctl_drain(struct ctl_run *ctl);
int ctl_undrain(struct ctl_run *ctl);
int ctl_prefetch(struct ctl_run *ctl, const char *key);
int ctl_pin(struct ctl_run *ctl, const char *key);
int ctl_unpin(struct ctl_run *ctl, const char *key);
int ctl_rm(struct ctl_run *ctl, const char *key);

/*
 * ctl_clear.c: of ctl->group, or of all namespaces if it is NULL. 1: with ctl->cluster, a host is
 * not known to be empty.
 */
int ctl_clear(struct ctl_run *ctl);

/* ctl_quota.c. `size`: the new quota of ctl->group; NULL: it stays. */
int ctl_quota(struct ctl_run *ctl, const char *size);

/* ctl_keygen.c */
int ctl_keygen(const struct ctl_run *ctl, const char *path);

/* ctl_tls.c */
int ctl_tls_example(
	const struct ctl_run *ctl, const char *folder, const char *cluster, int names, char **name);

/* ctl_keys.c. 0, or CTL_NO_ANSWER: there is no engine, or it ended. */
int ctl_keys(struct ctl_run *ctl);

/* ctl_status.c */
int ctl_status(struct ctl_run *ctl);
int ctl_members(struct ctl_run *ctl);
/* 0: no finding or only information, 1: a warning, 2: a critical finding, 3: no answer. */
int ctl_health(struct ctl_run *ctl);

/*
 * ctl_directory.c. 0: nothing is left to send to an owner, 1: entries move or an owner is late,
 * CTL_NO_ANSWER: no answer.
 */
int ctl_directory(struct ctl_run *ctl);

/*
 * ctl_explain.c. 0: a reader finds the key, 1: it does not, CTL_NO_ANSWER: no answer, 4: an owner
 * or a holder could not be asked.
 */
int ctl_explain(struct ctl_run *ctl, const char *key);
/*
 * ctl_match.c. 0: a host has the first key, 1: none, 4: none, and an owner could not be asked.
 */
int ctl_match(struct ctl_run *ctl, int count, char **keys);

/*
 * ctl_restart.c. 0: another engine serves, 1: the engine was left running, CTL_NO_ANSWER: none
 * serves.
 */
int ctl_restart(struct ctl_run *ctl);

#define CTL_NO_ANSWER 3
/*
 * Ends the program with CTL_NO_ANSWER and a message if it still runs after ctl->timeout_ms: calls
 * to an engine that hangs take longer than a monitoring system waits.
 */
void ctl_deadline(const struct ctl_run *ctl);
/* Opens a session with the engine. 0 or -errno, see pc_error(). */
int ctl_open(const struct ctl_run *ctl, struct pc **ret_pc);
/*
 * A report, from a new session if ctl->pc is NULL; NULL: no answer, see pc_error(). Waits for the
 * engine. The caller frees it.
 */
json_object *ctl_report(struct ctl_run *ctl);
/* Prints that the engine does not answer and why; returns CTL_NO_ANSWER. */
int ctl_no_answer(const struct ctl_run *ctl, const char *why);

/* ctl_doctor.c. 0: nothing to mend, 1: findings; ends the program with 2 for wrong settings. */
int ctl_doctor(struct ctl_run *ctl);

/* ctl_top.c: 0, or CTL_NO_ANSWER for --once. */
int ctl_top(struct ctl_run *ctl);

/* ---- ctl_json.c: numbers and words ----------------------------------------------------------- */

/* 0 for anything but an array. */
size_t json_length(json_object *array);
/* NULL beyond the end, and for anything but an array. */
json_object *json_at(json_object *array, size_t i);
#define WORDS_BYTES 32 /* of a number in words */
/* These functions return `ret`; a negative amount is 0. */
const char *text_duration(uint64_t ms, char ret[WORDS_BYTES]); /* "3 d 4 h", "5 min 6 s", "6 s" */
const char *text_bytes(double amount, char ret[WORDS_BYTES]);  /* "1.5 GiB" */
const char *text_count(double amount, char ret[WORDS_BYTES]);  /* "9999", "12.3k" */
const char *text_ns(uint64_t ns, char ret[WORDS_BYTES]);       /* "800ns", "1.2us", "35ms" */
/*
 * Copies `text` with a "?" for each control character and each byte that is not ASCII, because a
 * name that another engine sends must not control the terminal. Returns `ret`.
 */
const char *text_plain(const char *text, char *ret, size_t bytes);
#define PLAIN_BYTES 128
/* The same for a text of an object; "" when it is not there. */
const char *json_plain(json_object *o, const char *name, char ret[PLAIN_BYTES]);

/*
 * The member on the map with this ref, 8 hexadecimal digits: the low half of its incarnation. NULL:
 * none.
 */
json_object *json_member_with(json_object *members, const char *ref);

#endif
