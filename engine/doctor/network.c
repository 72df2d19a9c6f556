/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this host knows of names, addresses and ports, without asking other hosts for more than a
 * connection. One thread; looking names up may block.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <grp.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#include "config/address_text.h"
#include "config/certificates.h"
#include "config/json_read.h"
#include "config/ports.h"
#include "config/psk.h"
#include "config/seeds.h"
#include "config/unit.h"
#include "engine/control/net/address.h"
#include "engine/doctor/inner.h"
#include "engine/doctor/reach.h"

/* ---- the address of this engine -------------------------------------------------------------- */

/* Has an interface of this host the address? */
static bool address_is_here(const struct sockaddr *address)
{
	struct ifaddrs *list;
	bool here = false;

	if (getifaddrs(&list) < 0)
		return true; /* not known */
	for (const struct ifaddrs *at = list; at && !here; at = at->ifa_next)
		here = at->ifa_addr && address_same(at->ifa_addr, address);
	freeifaddrs(list);
	return here;
}

/* Are there seeds of other hosts? */
static bool seeds_elsewhere(const struct settings *s)
{
	char text[sizeof(s->cluster_seeds)], *rest = NULL;
	bool elsewhere = s->cluster_seeds_file[0] || s->cluster_etcd[0];

	snprintf(text, sizeof(text), "%s", s->cluster_seeds);
	for (char *each = strtok_r(text, ", \t", &rest); each;
		each = strtok_r(NULL, ", \t", &rest)) {
		struct seed_address seed;

		if (seed_parse(each, 1, &seed) == 0)
			elsewhere |= !address_text_loopback(seed.host);
	}
	return elsewhere;
}

static void name_examine(struct doctor *d, const char *name)
{
	struct addrinfo *list;
	bool loopback = true, here = false;
	int error = address_look_up(name, 1, &list);

	if (error) {
		found(d, DOCTOR_FOUND, "cluster.address",
			"write the name and the address of this host to /etc/hosts, or set cluster.address to an address",
			"%s: %s", name, gai_strerror(error));
		return;
	}
	for (const struct addrinfo *at = list; at; at = at->ai_next) {
		loopback &= address_loopback(at->ai_addr);
		here |= address_is_here(at->ai_addr);
	}
	freeaddrinfo(list);
	if (loopback)
		found(d, DOCTOR_FOUND, "cluster.address",
			"cluster.address = auto, or the address of this host beside its name in /etc/hosts",
			"%s has loopback addresses only on this host, as Debian writes 127.0.1.1 to /etc/hosts: other hosts are told an address that leads to themselves",
			name);
	else if (!here && !d->s->cluster_bind[0])
		found(d, DOCTOR_FOUND, "cluster.address",
			"set it to an address of this host; behind NAT also set cluster.bind",
			"%s has no address of this host", name);
	else
		found(d, DOCTOR_OK, "cluster.address", NULL, "%s is a name of this host", name);
}

void check_address(struct doctor *d)
{
	const char *text = d->s->cluster_address;
	struct sockaddr_storage literal;
	socklen_t bytes;

	if (!strcmp(text, "auto")) {
		if (strcmp(d->listening.cluster_address, "auto"))
			found(d, DOCTOR_OK, "cluster.address", NULL, "auto: %s",
				d->listening.cluster_address);
		else
			found(d, DOCTOR_FOUND, "cluster.address",
				"set cluster.address to an address of this host, or give it a route to the seeds",
				"auto: no route of this host tells its address");
		return;
	}
	if (address_text_loopback(text)) {
		if (seeds_elsewhere(d->s))
			found(d, DOCTOR_FOUND, "cluster.address",
				"cluster.address = auto, or an address that other hosts reach",
				"%s is a loopback address, and seeds are on other hosts", text);
		else
			found(d, DOCTOR_OK, "cluster.address", NULL,
				"%s: engines of this host only", text);
		return;
	}
	if (address_literal(text, 1, &literal, &bytes) < 0)
		name_examine(d, text);
	else if (!address_is_here((struct sockaddr *)&literal) && !d->s->cluster_bind[0])
		found(d, DOCTOR_FOUND, "cluster.address",
			"set it to an address of this host (ip address); behind NAT also set cluster.bind",
			"%s is not an address of this host", text);
	else
		found(d, DOCTOR_OK, "cluster.address", NULL, "%s", text);
}

/* ---- seeds ----------------------------------------------------------------------------------- */

/* The family in which this engine is reached: AF_UNSPEC: any, or not known. */
static int own_family(const struct settings *s)
{
	struct sockaddr_storage literal;
	socklen_t bytes;

	if (address_literal(s->cluster_address, 1, &literal, &bytes) < 0)
		return AF_UNSPEC;
	return literal.ss_family;
}

/* Whether something accepts connections at a port of another host. */
static void reach_tell(struct doctor *d, const char *host, unsigned port, const char *where)
{
	enum reach reach = reach_try(host, port, d->options->timeout_ms);

	if (reach == REACH_OPEN)
		found(d, DOCTOR_OK, where, NULL, "it accepts connections");
	else if (reach == REACH_REFUSED)
		found(d, DOCTOR_UNKNOWN, where, "start the engine there, and run this again",
			"the host answers, and no engine listens there now, or a firewall rejects");
	else
		found(d, DOCTOR_FOUND, where,
			"open that port in the firewalls of both hosts (peercache-engine --plan has all ports), and look at the route: ip route get ADDRESS",
			"%s", reach_text(reach));
}

static void seed_examine(struct doctor *d, const struct seed_address *seed)
{
	int family = own_family(d->s), error;
	char where[ADDRESS_TEXT_BYTES];
	bool loopback = true, same = false, here = true;
	struct addrinfo *list;

	address_text(seed->host, seed->port, where);
	error = address_look_up(seed->host, seed->port, &list);
	if (error) {
		found(d, DOCTOR_FOUND, where, "write it to /etc/hosts or DNS, or give an address",
			"seed %s: %s", seed->host, gai_strerror(error));
		return;
	}
	for (const struct addrinfo *at = list; at; at = at->ai_next) {
		loopback &= address_loopback(at->ai_addr);
		same |= family == AF_UNSPEC || at->ai_family == family;
		here &= address_is_here(at->ai_addr);
	}
	freeaddrinfo(list);
	if (loopback && !address_text_loopback(seed->host))
		found(d, DOCTOR_FOUND, where,
			"give the address of that host, or correct /etc/hosts here",
			"seed %s has loopback addresses only on this host", seed->host);
	else if (!same)
		found(d, DOCTOR_FOUND, where,
			"use one family for cluster.address and all seeds, or give every host both",
			"seed %s has no %s address, and cluster.address = %s is one", seed->host,
			family == AF_INET6 ? "IPv6" : "IPv4", d->s->cluster_address);
	else if (here && seed->port == d->s->cluster_port)
		found(d, DOCTOR_OK, where, NULL, "this engine itself");
	else
		reach_tell(d, seed->host, seed->port, where);
}

#define KEYS_END_S (14 * 86400)

/* In a child: reads the files as the user of the engine. Writes what is wrong, or the end. */
static void keys_write(void *context, int fd)
{
	const struct doctor *d = context;
	const struct passwd *user;
	struct certificates *certificates = NULL;
	struct psk_file file;
	char why[PSK_WHY_BYTES], name[ADDRESS_TEXT_BYTES + NAME_BYTES_MAX];
	int status;

	if (d->user && geteuid() == 0 && user_find(d->user, &user) == 0 &&
		(initgroups(d->user, user->pw_gid) < 0 || setgid(user->pw_gid) < 0 ||
			setuid(user->pw_uid) < 0))
		_exit(1);
	status = d->s->cluster_tls_dir[0]
			 ? certificates_read(d->s->cluster_tls_dir, &certificates, why)
			 : psk_file_read(d->s->cluster_psk_file, &file, why);
	if (d->s->engine_name[0])
		snprintf(name, sizeof(name), "%s", d->s->engine_name);
	else
		address_text(d->s->cluster_address, (unsigned)d->s->cluster_port, name);
	if (status < 0)
		status = dprintf(fd, "%s", why);
	else if (certificates && (d->s->engine_name[0] || strcmp(d->s->cluster_address, "auto")) &&
		 !certificate_names(certificates->own, d->s->cluster_id, name))
		status =
			dprintf(fd, "cert.pem has no URI peercache:%s/%s: it is not of this engine",
				d->s->cluster_id, name);
	else
		status = dprintf(fd, "+%lld",
			certificates ? (long long)certificates->ends_s : (long long)INT64_MAX);
	_exit(status < 0);
}

void check_keys(struct doctor *d)
{
	bool certificates = d->s->cluster_tls_dir[0] != '\0';
	const char *where = certificates ? d->s->cluster_tls_dir : d->s->cluster_psk_file;
	char answer[PSK_WHY_BYTES] = "";
	int64_t left_s;

	if (!*where) {
		found(d, DOCTOR_NONE, "cluster.psk_file", NULL,
			"links between engines are in clear text");
		return;
	}
	if ((d->user && user_allowed(d->user) == -EPERM) ||
		doctor_child(keys_write, d, d->options->timeout_ms, answer, sizeof(answer)) != 0) {
		found(d, DOCTOR_UNKNOWN, where, "run the doctor as root or as the engine's user",
			"it cannot be read as the engine does");
		return;
	}
	left_s = strtoll(answer, NULL, 10) - (int64_t)time(NULL);
	if (answer[0] != '+')
		found(d, DOCTOR_FOUND, where,
			certificates
				? "replace the file that is named; an engine reads it again by itself"
				: "peercachectl keygen makes the file; all engines have the same",
			"%s", answer);
	else if (left_s < KEYS_END_S)
		found(d, DOCTOR_FOUND, where, "replace cert.pem and key.pem, or crl.pem",
			"a certificate or CRL ends in %lld days", (long long)left_s / 86400);
	else
		found(d, DOCTOR_OK, where, NULL, "the engine can use it");
}

#define FILE_SEEDS_MAX 32u /* that are examined: each may take the time-out */

/* seeds_text_open() as the user of the engine; groups stay those of root. */
static int seeds_file_open_as(const struct doctor *d, struct stat *ret)
{
	const struct passwd *user;
	int fd;

	if (!d->user || geteuid() != 0 || user_find(d->user, &user) < 0)
		return seeds_text_open(d->s->cluster_seeds_file, ret);
	setfsgid(user->pw_gid);
	setfsuid(user->pw_uid);
	fd = seeds_text_open(d->s->cluster_seeds_file, ret);
	setfsuid(0);
	setfsgid(getegid());
	return fd;
}

/* The first word of the file that is no address. */
struct bad_seed {
	char word[NAME_BYTES_MAX];
	unsigned line;
};

static void seeds_file_bad(struct seeds_text *text, const char *word, unsigned line)
{
	struct bad_seed *bad = text->context;

	if (text->bad > 1)
		return;
	bad->line = line;
	snprintf(bad->word, sizeof(bad->word), "%.*s", NAME_BYTES_MAX - 1, word);
}

static void seeds_text_examine(struct doctor *d, char *text)
{
	const char *path = d->s->cluster_seeds_file;
	struct bad_seed bad;
	struct seeds_text seeds = {
		.address = calloc(SEEDS_FILE_ADDRESSES_MAX, sizeof(*seeds.address)),
		.on_bad = seeds_file_bad,
		.context = &bad};

	if (!seeds.address) {
		found(d, DOCTOR_UNKNOWN, path, NULL, "out of memory");
		return;
	}
	seeds_text_parse(&seeds, text, (uint16_t)d->s->cluster_port);
	if (seeds.bad)
		found(d, DOCTOR_FOUND, path, "write 10.0.0.1:31998, [fd00::1]:31998 or name:31998",
			"line %u: \"%s\" is not address:port; %u words are not used", bad.line,
			bad.word, seeds.bad);
	else if (!seeds.count)
		found(d, DOCTOR_FOUND, path, "write addresses of engines to it",
			"the file has no address");
	for (unsigned i = 0; i < seeds.count && i < FILE_SEEDS_MAX; i++)
		seed_examine(d, &seeds.address[i]);
	if (seeds.count > FILE_SEEDS_MAX)
		found(d, DOCTOR_UNKNOWN, path, "peercachectl members, when the engine runs",
			"%u of its %u addresses are not examined", seeds.count - FILE_SEEDS_MAX,
			seeds.count);
	free(seeds.address);
}

static void seeds_file_examine(struct doctor *d)
{
	const char *path = d->s->cluster_seeds_file;
	struct stat st;
	char *text;
	int fd, rc;

	if (d->user && user_allowed(d->user) == -EPERM) {
		found(d, DOCTOR_UNKNOWN, path, "run the doctor as root or as that user",
			"only root and user %s see it as the engine does", d->user);
		return;
	}
	fd = seeds_file_open_as(d, &st);
	rc = fd < 0 ? fd : seeds_text_read(fd, (size_t)st.st_size, &text);
	if (fd >= 0)
		close(fd);
	if (rc < 0) {
		found(d, DOCTOR_FOUND, path,
			"write the addresses of engines to it, or correct cluster.seeds_file; the engine tries again every second",
			"the engine reads no seeds there: %s", strerror(-rc));
		return;
	}
	seeds_text_examine(d, text);
	free(text);
}

void check_seeds(struct doctor *d)
{
	char text[sizeof(d->s->cluster_seeds)], *rest = NULL;

	if (d->s->cluster_seeds_file[0])
		seeds_file_examine(d);
	if (d->s->cluster_etcd[0])
		found(d, DOCTOR_UNKNOWN, "cluster.etcd",
			"peercachectl members, when the engine runs",
			"seeds of etcd are not examined");
	if (!d->s->cluster_seeds[0] && !d->s->cluster_seeds_file[0] && !d->s->cluster_etcd[0])
		found(d, DOCTOR_NONE, "cluster.seeds", NULL, "none");
	snprintf(text, sizeof(text), "%s", d->s->cluster_seeds);
	for (char *each = strtok_r(text, ", \t", &rest); each;
		each = strtok_r(NULL, ", \t", &rest)) {
		struct seed_address seed;

		/* what is no address is a finding of the settings */
		if (seed_parse(each, (uint16_t)d->s->cluster_port, &seed) == 0)
			seed_examine(d, &seed);
	}
}

/* ---- ports ----------------------------------------------------------------------------------- */

/* Is the port in a list such as "7000-7001,8080"? */
static bool port_is_listed(const char *list, unsigned port)
{
	unsigned low, high;
	int used;

	while (sscanf(list, "%u%n", &low, &used) == 1) {
		list += used;
		high = low;
		if (sscanf(list, "-%u%n", &high, &used) == 1)
			list += used;
		if (port >= low && port <= high)
			return true;
		if (*list++ != ',')
			return false;
	}
	return false;
}

#define RESERVED "/proc/sys/net/ipv4/ip_local_reserved_ports"

/* Ports that outgoing connections of this host may take: in the range, and not reserved. */
static bool port_is_ephemeral(const struct doctor *d, unsigned port)
{
	unsigned low, high;
	char text[4096];

	if (host_text(d, "/proc/sys/net/ipv4/ip_local_port_range", text, sizeof(text)) !=
			HOST_READ ||
		sscanf(text, "%u %u", &low, &high) != 2 || port < low || port > high)
		return false;
	return host_text(d, RESERVED, text, sizeof(text)) != HOST_READ ||
	       !port_is_listed(text, port);
}

/* The command that reserves those ports of the engine, and keeps what is reserved. */
static void port_reserve_fix(struct doctor *d, struct doctor_finding *finding, const char *setting)
{
	struct port_use list[PORTS_MAX];
	unsigned count = ports_list(&d->listening, list);
	char reserved[4096];
	size_t used;

	(void)host_text(d, RESERVED, reserved, sizeof(reserved));
	used = strlen(reserved);
	for (unsigned i = 0; i < count; i++)
		for (unsigned n = 0; list[i].listens && list[i].port && n < list[i].ports; n++)
			if (used + 8 < sizeof(reserved) && port_is_ephemeral(d, list[i].port + n))
				used += (size_t)sprintf(
					reserved + used, "%s%u", used ? "," : "", list[i].port + n);
	if (used > sizeof(reserved) / 2) /* the list may be longer than what was read */
		fix_set(finding, "add it to net.ipv4.ip_local_reserved_ports, or set a lower %s",
			setting);
	else
		fix_set(finding, "sysctl -w net.ipv4.ip_local_reserved_ports=%s, or set a lower %s",
			reserved, setting);
}

/* Does the running engine have this port, by its own report? */
static bool port_is_own(const struct doctor *d, const char *setting, unsigned first)
{
	int64_t value;

	return json_whole(json_get(d->options->report, "settings"), setting, &value) &&
	       value == (int64_t)first;
}

static void port_examine(struct doctor *d, const struct port_use *use, unsigned port)
{
	int rc = reach_listen(use->address, port);
	char where[64];

	if (rc >= 0)
		close(rc);
	snprintf(where, sizeof(where), "%s %u", use->setting, port);
	if (rc == -EADDRINUSE && port_is_own(d, use->setting, use->port))
		found(d, DOCTOR_OK, where, NULL, "the engine listens on it");
	else if (rc == -EADDRINUSE && d->engine == ENGINE_UNASKED)
		found(d, DOCTOR_UNKNOWN, where, NULL,
			"a program listens on it; whether it is the engine is not known");
	else if (rc == -EADDRINUSE)
		fix_set(found(d, DOCTOR_FOUND, where, NULL,
				"port %u of %s is used by another program", port, use->address),
			"ss -tlnp 'sport = :%u' names it; end it, or set another %s", port,
			use->setting);
	else if (rc == -EACCES)
		found(d, DOCTOR_FOUND, where, "set a port above 1023",
			"port %u needs a privilege: %s", port, strerror(-rc));
	else if (rc < 0)
		found(d, DOCTOR_UNKNOWN, where, NULL, "binding %s port %u: %s", use->address, port,
			strerror(-rc));
	else if (port_is_ephemeral(d, port))
		port_reserve_fix(d,
			found(d, DOCTOR_FOUND, where, NULL,
				"outgoing connections of this host may take port %u (net.ipv4.ip_local_port_range) before the engine starts",
				port),
			use->setting);
	else
		found(d, DOCTOR_OK, where, NULL, "free");
}

void check_ports(struct doctor *d)
{
	struct port_use list[PORTS_MAX];
	unsigned count = ports_list(&d->listening, list);

	for (unsigned i = 0; i < count; i++) {
		if (!list[i].listens)
			found(d, DOCTOR_UNKNOWN, "UDP 4791",
				"open UDP port 4791 between all hosts in switches and cloud rules; ib_read_bw tests it",
				"packets of RoCE NICs do not pass this host's firewall; only a READ tests the way");
		else if (!list[i].port)
			found(d, DOCTOR_OK, list[i].setting, NULL, "any free port");
		for (unsigned n = 0; list[i].listens && list[i].port && n < list[i].ports; n++)
			port_examine(d, &list[i], list[i].port + n);
	}
}

/* ---- the time -------------------------------------------------------------------------------- */

void check_time(struct doctor *d)
{
	struct timex t = {.modes = 0};

	if (adjtimex(&t) < 0)
		found(d, DOCTOR_UNKNOWN, "adjtimex()", NULL,
			"the state of the clock cannot be read");
	else if (t.status & STA_UNSYNC)
		found(d, DOCTOR_UNKNOWN, "adjtimex()",
			"chronyc tracking, or timedatectl timesync-status",
			"nothing has told the kernel that the clock is right");
	else
		found(d, DOCTOR_OK, "adjtimex()", NULL, "synchronized, within %.1f ms",
			(double)t.maxerror / 1000);
}

static void peer_examine(struct doctor *d, const char *text)
{
	struct port_use list[PORTS_MAX];
	unsigned count = ports_list(&d->listening, list);
	struct seed_address peer;
	char where[160];

	snprintf(where, sizeof(where), "%s", text);
	if (seed_parse(where, (uint16_t)d->s->cluster_port, &peer) < 0) {
		found(d, DOCTOR_UNKNOWN, text, "--peer HOST or --peer HOST:PORT", "not an address");
		return;
	}
	for (unsigned i = 0; i < count; i++) {
		for (unsigned n = 0; list[i].listens && list[i].port && n < list[i].ports; n++) {
			/* cluster.port is that of --peer; the others are as here */
			unsigned port = i ? list[i].port + n : peer.port;

			snprintf(where, sizeof(where), "%s port %u (%s)", peer.host, port,
				list[i].setting);
			reach_tell(d, peer.host, port, where);
		}
	}
}

void check_peers(struct doctor *d)
{
	if (!d->options->peer[0])
		found(d, DOCTOR_UNKNOWN, "--peer", "peercachectl doctor --peer HOST, on each host",
			"of other hosts only the cluster.port of seeds is examined without --peer HOST");
	for (unsigned i = 0; i < DOCTOR_PEERS_MAX && d->options->peer[i]; i++)
		peer_examine(d, d->options->peer[i]);
}
