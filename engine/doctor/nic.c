/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NICs of rail.devices as sysfs shows them: link, addresses, MTU, and what keeps RoCE packets
 * from being lost. Nothing is opened. One thread.
 */
#include <errno.h>
#include <linux/dcbnl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/doctor/inner.h"

#define IB "/sys/class/infiniband"
#define MTU_WANTED 4200 /* RoCE: 4096 bytes of payload and the headers */

/* One NIC of rail.devices. */
struct nic {
	char name[NAME_BYTES_MAX];
	char port[128];        /* its folder of port 1 */
	char net[IF_NAMESIZE]; /* its network interface; "": not known */
	bool roce;
};

static bool nic_next(const struct doctor *d, const char **list, struct nic *ret)
{
	for (;;) {
		char path[256], layer[32];
		struct host_paths nets;
		size_t length;

		*list += strspn(*list, ", \t");
		length = strcspn(*list, ", \t");
		if (!length)
			return false;
		snprintf(ret->name, sizeof(ret->name), "%.*s", (int)length, *list);
		*list += length;
		if (!strncmp(ret->name, "soft", 4) || !strcmp(ret->name, "none"))
			continue;
		snprintf(ret->port, sizeof(ret->port), IB "/%s/ports/1", ret->name);
		snprintf(path, sizeof(path), "%s/link_layer", ret->port);
		(void)host_text(d, path, layer, sizeof(layer));
		ret->roce = strcmp(layer, "InfiniBand") != 0;
		ret->net[0] = '\0';
		snprintf(path, sizeof(path), IB "/%s/device/net/*", ret->name);
		nets = host_glob(d, path);
		if (nets.count)
			snprintf(ret->net, sizeof(ret->net), "%.15s",
				strrchr(nets.path[0], '/') + 1);
		host_paths_free(&nets);
		return true;
	}
}

/*
 * Examines each NIC of rail.devices. `infiniband`: what is said of a NIC that is not RoCE, which is
 * not examined then; NULL: it is examined as well.
 */
static void nics_examine(struct doctor *d, const char *infiniband,
	void (*examine)(struct doctor *d, const struct nic *nic))
{
	const char *list = d->s->rail_devices;
	struct nic nic;

	if (!d->nics)
		found(d, DOCTOR_NONE, "rail.devices", NULL, "no RDMA NIC is used");
	while (nic_next(d, &list, &nic)) {
		if (infiniband && !nic.roce)
			found(d, DOCTOR_OK, nic.port, NULL, "InfiniBand: %s", infiniband);
		else
			examine(d, &nic);
	}
}

void check_software_nic(struct doctor *d)
{
	struct host_paths nics = host_glob(d, IB "/*");
	char names[256] = "";
	size_t used = 0;

	for (size_t i = 0; i < nics.count && used < sizeof(names); i++)
		used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i ? "," : "",
			strrchr(nics.path[i], '/') + 1);
	host_paths_free(&nics);
	if (d->soft && used) {
		struct doctor_finding *f = found(d, DOCTOR_FOUND, "rail.devices", NULL,
			"%s: the software NIC is used, and this host has RDMA NICs",
			d->s->rail_devices);

		fix_set(f, "rail.devices = %s", names);
	} else if (d->soft && !host_has(d, "/sys/class/net/*")) {
		/* every host has an interface: without one in sysfs, its NICs are not shown */
		found(d, DOCTOR_UNKNOWN, "/sys/class/net", NULL,
			"without sysfs it is not known which NICs this host has");
	} else if (d->soft) {
		found(d, DOCTOR_OK, "rail.devices", NULL, "this host has no RDMA NIC");
	} else if (d->nics) {
		found(d, DOCTOR_OK, "rail.devices", NULL, "RDMA NICs are used");
	} else {
		found(d, DOCTOR_NONE, "rail.devices", NULL, "a seed only has no rails");
	}
	if (d->soft && d->s->soft_link == LINK_SHM && d->s->cluster_seeds[0] &&
		strcmp(d->s->cluster_address, "localhost") &&
		strncmp(d->s->cluster_address, "127.", 4) && strcmp(d->s->cluster_address, "::1"))
		found(d, DOCTOR_FOUND, "soft.link", "soft.link = tcp, on all hosts",
			"shm reaches engines of this host only, and the cluster has other addresses");
}

static void link_examine(struct doctor *d, const struct nic *nic)
{
	char path[256], state[64], rate[64];
	enum host_read read;

	snprintf(path, sizeof(path), IB "/%s", nic->name);
	if (!host_has(d, path)) {
		found(d, DOCTOR_FOUND, path, "ls " IB "; modprobe mlx5_ib", "there is no NIC %s",
			nic->name);
		return;
	}
	snprintf(path, sizeof(path), "%s/rate", nic->port);
	(void)host_text(d, path, rate, sizeof(rate));
	snprintf(path, sizeof(path), "%s/state", nic->port);
	read = host_text(d, path, state, sizeof(state));
	if (read != HOST_READ || !state[0])
		found(d, DOCTOR_UNKNOWN, path, NULL, "it cannot be read");
	else if (strstr(state, "ACTIVE"))
		found(d, DOCTOR_OK, path, NULL, "%s, %s", state, rate);
	else
		fix_set(found(d, DOCTOR_FOUND, path, NULL, "%s: pages cannot be read over this NIC",
				state),
			"ip link set %s up; look at cable, transceiver and switch port",
			nic->net[0] ? nic->net : "INTERFACE");
}

void check_links(struct doctor *d)
{
	nics_examine(d, NULL, link_examine);
}

/* Is a GID usable: RoCE v2 and not empty? Link-local ones are not routed. */
static bool gid_usable(const struct doctor *d, const struct nic *nic, unsigned index)
{
	char path[256], type[64], gid[64];

	snprintf(path, sizeof(path), "%s/gids/%u", nic->port, index);
	if (host_text(d, path, gid, sizeof(gid)) != HOST_READ || !strpbrk(gid, "123456789abcdef") ||
		!strncmp(gid, "fe80", 4))
		return false;
	snprintf(path, sizeof(path), "%s/gid_attrs/types/%u", nic->port, index);
	return host_text(d, path, type, sizeof(type)) == HOST_READ && !strcmp(type, "RoCE v2");
}

static void gid_examine(struct doctor *d, const struct nic *nic)
{
	int64_t wanted = d->s->rail_gid_index;
	struct doctor_finding *f;
	char path[256], gid[64];

	snprintf(path, sizeof(path), "%s/gids", nic->port);
	for (unsigned i = 0; i < 256; i++) {
		if ((wanted >= 0 && i != wanted) || !gid_usable(d, nic, i))
			continue;
		found(d, DOCTOR_OK, path, NULL, "index %u is RoCE v2", i);
		return;
	}
	snprintf(path, sizeof(path), "%s/gids/%u", nic->port, wanted < 0 ? 0 : (unsigned)wanted);
	if (host_text(d, path, gid, sizeof(gid)) == HOST_UNREADABLE) {
		found(d, DOCTOR_UNKNOWN, nic->port, NULL, "its GIDs cannot be read");
		return;
	}
	if (wanted >= 0)
		found(d, DOCTOR_FOUND, "rail.gid_index",
			"rail.gid_index = -1, so that one is chosen",
			"GID %lld of %s is not a routed RoCE v2 address", (long long)wanted,
			nic->name);
	else {
		f = found(d, DOCTOR_FOUND, nic->port, NULL,
			"%s has no routed RoCE v2 GID: its interface has no IP address", nic->name);
		fix_set(f, "ip address add ADDRESS/PREFIX dev %s; then show_gids",
			nic->net[0] ? nic->net : "INTERFACE");
	}
}

void check_gids(struct doctor *d)
{
	nics_examine(d, "it needs none", gid_examine);
}

static void mtu_examine(struct doctor *d, const struct nic *nic)
{
	char path[256];
	int64_t mtu;

	snprintf(path, sizeof(path), "/sys/class/net/%s/mtu", nic->net);
	if (!nic->net[0] || host_number(d, path, &mtu) != HOST_READ)
		found(d, DOCTOR_UNKNOWN, nic->net[0] ? path : nic->port, NULL,
			"the MTU of the interface of %s cannot be read", nic->name);
	else if (mtu < MTU_WANTED)
		fix_set(found(d, DOCTOR_FOUND, path, NULL,
				"%lld: packets of %s have at most %d bytes of payload",
				(long long)mtu, nic->name, mtu < 2200 ? 1024 : 2048),
			"ip link set %s mtu 9000, on all hosts and switches", nic->net);
	else
		found(d, DOCTOR_OK, path, NULL, "%lld", (long long)mtu);
}

void check_mtu(struct doctor *d)
{
	nics_examine(d, "the subnet manager sets it", mtu_examine);
}

/* The class of packets that the NIC sends; -1: not known. */
static int64_t traffic_class(const struct doctor *d, const struct nic *nic, char ret_path[256])
{
	char text[64], *equals;
	int64_t class = -1;

	snprintf(ret_path, 256, "%s/%s/tc/1/traffic_class", IB, nic->name);
	if (d->s->rail_traffic_class >= 0) {
		snprintf(ret_path, 256, "rail.traffic_class");
		return d->s->rail_traffic_class;
	}
	if (host_text(d, ret_path, text, sizeof(text)) != HOST_READ)
		return -1;
	equals = strrchr(text, '='); /* "Global tclass=106" */
	if (sscanf(equals ? equals + 1 : text, "%ld", &class) != 1)
		return 0; /* the file is empty until it is written */
	return class;
}

static void traffic_class_examine(struct doctor *d, const struct nic *nic)
{
	char path[256];
	int64_t class = traffic_class(d, nic, path);

	if (class < 0)
		found(d, DOCTOR_UNKNOWN, path,
			"rail.traffic_class = 106 (DSCP 26), as the switches expect it",
			"%s: this driver does not show it; the engine uses 0", nic->name);
	else if (class == 0 && d->s->rail_traffic_class < 0)
		found(d, DOCTOR_FOUND, path,
			"rail.traffic_class = 106 (DSCP 26), as the switches expect it; 0 if no class is wanted",
			"0: no switch tells packets of %s from others", nic->name);
	else
		found(d, DOCTOR_OK, path, NULL, "%lld", (long long)class);
}

void check_traffic_class(struct doctor *d)
{
	nics_examine(d, "it uses rail.service_level", traffic_class_examine);
}

/* Asks the kernel for the priorities with PFC (802.1Qbb). Returns the mask, or -errno. */
static int pfc_read(const char *net)
{
	struct {
		struct nlmsghdr head;
		struct dcbmsg dcb;
		char attributes[64];
	} ask = {.head = {.nlmsg_type = RTM_GETDCB, .nlmsg_flags = NLM_F_REQUEST},
		.dcb = {.dcb_family = AF_UNSPEC, .cmd = DCB_CMD_IEEE_GET}};
	struct rtattr *name = (void *)ask.attributes;
	char answer[8192];
	struct nlmsghdr *head = (void *)answer;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	const struct timeval wait = {.tv_sec = 1};
	ssize_t bytes;

	if (fd < 0)
		return -errno;
	name->rta_type = DCB_ATTR_IFNAME;
	name->rta_len = (unsigned short)RTA_LENGTH(strlen(net) + 1);
	memcpy(RTA_DATA(name), net, strlen(net) + 1);
	ask.head.nlmsg_len = (unsigned)NLMSG_LENGTH(sizeof(ask.dcb)) + RTA_ALIGN(name->rta_len);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
	bytes = send(fd, &ask, ask.head.nlmsg_len, 0) < 0 ? -1
							  : recv(fd, answer, sizeof(answer), 0);
	close(fd);
	if (bytes < (ssize_t)NLMSG_LENGTH(sizeof(struct dcbmsg)) || !NLMSG_OK(head, bytes) ||
		head->nlmsg_type == NLMSG_ERROR)
		return -EOPNOTSUPP;
	for (struct rtattr *at = (void *)(answer + NLMSG_LENGTH(sizeof(struct dcbmsg)));
		RTA_OK(at, answer + bytes - (char *)at);
		at = (void *)((char *)at + RTA_ALIGN(at->rta_len))) {
		if ((at->rta_type & NLA_TYPE_MASK) != DCB_ATTR_IEEE)
			continue;
		for (struct rtattr *in = RTA_DATA(at);
			RTA_OK(in, (char *)at + at->rta_len - (char *)in);
			in = (void *)((char *)in + RTA_ALIGN(in->rta_len)))
			if ((in->rta_type & NLA_TYPE_MASK) == DCB_ATTR_IEEE_PFC &&
				RTA_PAYLOAD(in) >= 2)
				return ((const struct ieee_pfc *)RTA_DATA(in))->pfc_en;
	}
	return -ENODATA;
}

/* Priorities for which the NIC reacts to marked packets; -1: the driver does not show it. */
static int ecn_read(const struct doctor *d, const char *net)
{
	int mask = -1;

	for (unsigned priority = 0; priority < 8; priority++) {
		char path[128];
		int64_t on;

		snprintf(path, sizeof(path), "/sys/class/net/%s/ecn/roce_rp/enable/%u", net,
			priority);
		if (host_number(d, path, &on) != HOST_READ)
			continue;
		mask = mask < 0 ? 0 : mask;
		mask |= on ? 1 << priority : 0;
	}
	return mask;
}

static void lossless_examine(struct doctor *d, const struct nic *nic)
{
	int pfc = d->root[0] || !nic->net[0] ? -ENODATA : pfc_read(nic->net);
	int ecn = nic->net[0] ? ecn_read(d, nic->net) : -1;

	if (pfc > 0 || ecn > 0)
		found(d, DOCTOR_OK, nic->net, NULL, "priorities: PFC mask 0x%x, ECN mask 0x%x",
			pfc < 0 ? 0 : pfc, ecn < 0 ? 0 : ecn);
	else if (pfc < 0 || ecn < 0)
		fix_set(found(d, DOCTOR_UNKNOWN, nic->net[0] ? nic->net : nic->port, NULL,
				"%s: the driver does not show both of PFC and ECN", nic->name),
			"mlnx_qos -i %s, or dcb pfc show dev with that name",
			nic->net[0] ? nic->net : "INTERFACE");
	else
		fix_set(found(d, DOCTOR_FOUND, nic->net, NULL,
				"%s: neither PFC nor ECN is on: a full switch drops packets, and each one costs a time-out",
				nic->name),
			"mlnx_qos -i %s --trust dscp --pfc 0,0,0,1,0,0,0,0", nic->net);
}

void check_lossless(struct doctor *d)
{
	nics_examine(d, "it loses no packets", lossless_examine);
}
