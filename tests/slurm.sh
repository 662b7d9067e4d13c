#!/usr/bin/env bash
# A SLURM of one node on loopback, for tests: slurm.sh install|start|stop, as root; no systemd needed.
# The node pretends to more cores than there are and to two GPUs. Accounting is off, so sacct fails.
set -euo pipefail
D=${EVOPRUNE_SLURM:-/tmp/evoprune-slurm}
HOST=$(hostname -s)

install_packages() {
  command -v slurmctld > /dev/null && command -v munged > /dev/null && return
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge > /dev/null
}

stop() {
  local name process
  for name in slurmd slurmctld munged; do
    [ -s "$D/$name.pid" ] || continue
    process=$(cat "$D/$name.pid")
    kill "$process" 2> /dev/null || true
    for _ in $(seq 50); do kill -0 "$process" 2> /dev/null || break; sleep .1; done
  done
  rm -rf "$D"
}

start() {
  stop
  mkdir -p "$D"/{state,spool,log}
  # The node's name must resolve to an address that the daemons can bind.
  getent hosts "$HOST" > /dev/null || echo "127.0.0.1 $HOST" >> /etc/hosts

  # munged refuses folders of other owners, or writable by others.
  install -d -o munge -g munge -m 0755 /run/munge
  install -d -o munge -g munge -m 0700 /var/lib/munge /var/log/munge /etc/munge
  [ -s /etc/munge/munge.key ] || dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 status=none
  chown munge:munge /etc/munge/munge.key
  chmod 0400 /etc/munge/munge.key
  setpriv --reuid=munge --regid=munge --clear-groups munged --pid-file=/run/munge/munged.pid
  for _ in $(seq 50); do [ -s /run/munge/munged.pid ] && munge -n < /dev/null 2> /dev/null | unmunge > /dev/null 2>&1 && break; sleep .1; done
  cp /run/munge/munged.pid "$D/munged.pid"

  # cred_expire: a requeued job waits so long before it starts again (5 is the least). MinJobAge: how long ended jobs are remembered.
  cat > /etc/slurm/slurm.conf << CONF
ClusterName=tests
SlurmctldHost=$HOST(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=cred_expire=5
SlurmctldPort=6817
SlurmdPort=6818
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool
SlurmctldPidFile=$D/slurmctld.pid
SlurmdPidFile=$D/slurmd.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd.log
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=1
KillWait=2
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout=30
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=$HOST NodeAddr=127.0.0.1 CPUs=4 RealMemory=16000 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=$HOST Default=YES MaxTime=INFINITE State=UP
CONF
  printf 'CgroupAutomount=no\n' > /etc/slurm/cgroup.conf
  echo "NodeName=$HOST Name=gpu File=/dev/tty[1-2]" > /etc/slurm/gres.conf
  slurmctld
  slurmd
  for _ in $(seq 100); do
    if sinfo -h -o %T 2> /dev/null | grep -qx idle; then return; fi
    sleep .1
  done
  echo "SLURM did not come up" >&2
  tail -20 "$D"/log/*.log >&2
  exit 1
}

case "${1:-}" in
  install) install_packages ;;
  start) start ;;
  stop) stop ;;
  *) echo "usage: slurm.sh install|start|stop" >&2; exit 2 ;;
esac
