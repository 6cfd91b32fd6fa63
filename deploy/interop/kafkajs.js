// node kafkajs.js ADDRESS TOPIC COUNT: writes numbers as an idempotent producer, reads them with two
// consumers of a group, and prints what was read and committed as JSON.
const { CompressionTypes, Kafka, logLevel } = require("kafkajs");

const PARTITIONS = 4;
const KEYS = 10;
const GROUP = "kafkajs";
const [address, topic, count] = process.argv.slice(2);
const total = Number(count);

async function write(kafka) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  const codecs = [CompressionTypes.None, CompressionTypes.GZIP];
  const each = total / codecs.length;
  for (const [index, compression] of codecs.entries()) {
    const messages = Array.from({ length: each }, (_, number) => ({
      key: `key-${number % KEYS}`,
      value: String(index * each + number),
      headers: { from: "kafkajs" },
    }));
    await producer.send({ topic, acks: -1, compression, messages });
  }
  await producer.disconnect();
}

async function start(member, found) {
  await member.connect();
  await member.subscribe({ topics: [topic], fromBeginning: true });
  await member.run({
    eachMessage: async ({ partition, message }) =>
      found.push([partition, Number(message.offset), String(message.key), String(message.value)]),
  });
}

async function read(kafka) {
  const found = [];
  const members = [0, 1].map(() => kafka.consumer({ groupId: GROUP }));
  const partitions = members.map(() => 0);
  const shared = members.map(
    (member, index) =>
      new Promise((resolve) =>
        member.on(member.events.GROUP_JOIN, ({ payload }) => {
          partitions[index] = (payload.memberAssignment[topic] ?? []).length;
          if (partitions.every((each) => each === PARTITIONS / members.length)) resolve();
        }),
      ),
  );
  await Promise.all(members.map((member) => start(member, found)));
  await Promise.race(shared);
  while (new Set(found.map((each) => each[3])).size < total)
    await new Promise((resolve) => setTimeout(resolve, 100));
  for (const member of members) await member.disconnect(); // commits what was read
  return found;
}

async function main() {
  const kafka = new Kafka({
    clientId: "interop",
    brokers: address.split(","),
    logLevel: logLevel.ERROR,
  });
  const admin = kafka.admin();
  await admin.connect();
  const made = { topic, numPartitions: PARTITIONS, replicationFactor: 3 };
  await admin.createTopics({ topics: [made], waitForLeaders: true });
  await write(kafka);
  const found = await read(kafka);
  const [{ partitions }] = await admin.fetchOffsets({ groupId: GROUP, topics: [topic] });
  const committed = partitions.reduce((sum, each) => sum + Number(each.offset), 0);
  const ends = await admin.fetchTopicOffsets(topic);
  await admin.disconnect();
  const end = ends.reduce((sum, each) => sum + Number(each.high), 0);
  console.log(JSON.stringify({ found, committed, end }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
