"""Weigh text as the collations utf8mb4_general_ci and utf8_general_ci do, code point by code point.

Each code point has one weight, so texts are equal if their weights are. The table is what a
server's WEIGHT_STRING shows. Beyond the Basic Multilingual Plane all code points are equal.
"""

from __future__ import annotations

import re
import string

_FROM = (
    "µÀÁÂÃÄÅÇÈÉÊËÌÍÎÏÑÒÓÔÕÖÙÚÛÜÝßàáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿĀāĂăĄąĆćĈĉĊċČčĎďđĒēĔĕĖėĘę"
    "ĚěĜĝĞğĠġĢģĤĥħĨĩĪīĬĭĮįİıĳĴĵĶķĹĺĻļĽľŀłŃńŅņŇňŋŌōŎŏŐőœŔŕŖŗŘřŚśŜŝŞşŠšŢţŤťŧŨũŪūŬŭŮůŰűŲųŴŵŶ"
    "ŷŸŹźŻżŽžſƃƅƈƌƒƕƙƠơƣƥƨƭƯưƴƶƹƽƿǅǆǈǉǋǌǍǎǏǐǑǒǓǔǕǖǗǘǙǚǛǜǝǞǟǠǡǢǣǥǦǧǨǩǪǫǬǭǮǯǰǲǳǴǵǸǹǺǻǼǽǾǿȀȁ"
    "ȂȃȄȅȆȇȈȉȊȋȌȍȎȏȐȑȒȓȔȕȖȗȘșȚțȝȞȟȣȥȦȧȨȩȪȫȬȭȮȯȰȱȲȳɓɔɖɗəɛɠɣɨɩɯɲɵʀʃʈʊʋʒ\u0345ΆΈΉΊΌΎΏΐΪΫάέήί"
    "ΰαβγδεζηθικλμνξοπρςστυφχψωϊϋόύώϐϑϓϔϕϖϛϝϟϡϣϥϧϩϫϭϯϰϱϲЀЁЃЇЌЍЎабвгдежзийклмнопрстуфхцчшщ"
    "ъыьэюяѐёђѓєѕіїјљњћќѝўџѡѣѥѧѩѫѭѯѱѳѵѶѷѹѻѽѿҁҍҏґғҕҗҙқҝҟҡңҥҧҩҫҭүұҳҵҷҹһҽҿӁӂӄӈӌӐӑӒӓӕӖӗәӚӛӜӝӞ"
    "ӟӡӢӣӤӥӦӧөӪӫӬӭӮӯӰӱӲӳӴӵӸӹաբգդեզէըթժիլխծկհձղճմյնշոչպջռսվտրցւփքօֆḀḁḂḃḄḅḆḇḈḉḊḋḌḍḎḏḐḑḒḓḔḕḖ"
    "ḗḘḙḚḛḜḝḞḟḠḡḢḣḤḥḦḧḨḩḪḫḬḭḮḯḰḱḲḳḴḵḶḷḸḹḺḻḼḽḾḿṀṁṂṃṄṅṆṇṈṉṊṋṌṍṎṏṐṑṒṓṔṕṖṗṘṙṚṛṜṝṞṟṠṡṢṣṤṥṦṧṨṩṪ"
    "ṫṬṭṮṯṰṱṲṳṴṵṶṷṸṹṺṻṼṽṾṿẀẁẂẃẄẅẆẇẈẉẊẋẌẍẎẏẐẑẒẓẔẕẖẗẘẙẛẠạẢảẤấẦầẨẩẪẫẬậẮắẰằẲẳẴẵẶặẸẹẺẻẼẽẾếỀềỂể"
    "ỄễỆệỈỉỊịỌọỎỏỐốỒồỔổỖỗỘộỚớỜờỞởỠỡỢợỤụỦủỨứỪừỬửỮữỰựỲỳỴỵỶỷỸỹἀἁἂἃἄἅἆἇἈἉἊἋἌἍἎἏἐἑἒἓἔἕἘἙἚἛἜἝἠἡ"
    "ἢἣἤἥἦἧἨἩἪἫἬἭἮἯἰἱἲἳἴἵἶἷἸἹἺἻἼἽἾἿὀὁὂὃὄὅὈὉὊὋὌὍὐὑὒὓὔὕὖὗὙὛὝὟὠὡὢὣὤὥὦὧὨὩὪὫὬὭὮὯὰάὲέὴήὶίὸόὺύὼώ"
    "ᾀᾁᾂᾃᾄᾅᾆᾇᾈᾉᾊᾋᾌᾍᾎᾏᾐᾑᾒᾓᾔᾕᾖᾗᾘᾙᾚᾛᾜᾝᾞᾟᾠᾡᾢᾣᾤᾥᾦᾧᾨᾩᾪᾫᾬᾭᾮᾯᾰᾱᾲᾳᾴᾶᾷᾸᾹᾺᾼιῂῃῄῆῇῈῊῌῐῑῒῖῗῘῙῚῠῡῢῤῥῦῧῨ"
    "ῩῪῬῲῳῴῶῷῸῺῼⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅺⅻⅼⅽⅾⅿⓐⓑⓒⓓⓔⓕⓖⓗⓘⓙⓚⓛⓜⓝⓞⓟⓠⓡⓢⓣⓤⓥⓦⓧⓨⓩ\uff41\uff42\uff43\uff44\uff45"
    "\uff46\uff47\uff48\uff49\uff4a\uff4b\uff4c\uff4d\uff4e\uff4f\uff50\uff51\uff52\uff53"
    "\uff54\uff55\uff56\uff57\uff58\uff59\uff5a"
)
_TO = (
    "ΜAAAAAACEEEEIIIINOOOOOUUUUYSAAAAAAÆCEEEEIIIIÐNOOOOOØUUUUYÞYAAAAAACCCCCCCCDDĐEEEEEEEE"
    "EEGGGGGGGGHHĦIIIIIIIIIIĲJJKKLLLLLLĿŁNNNNNNŊOOOOOOŒRRRRRRSSSSSSSSTTTTŦUUUUUUUUUUUUWWY"
    "YYZZZZZZSƂƄƇƋƑǶƘOOƢƤƧƬUUƳƵƸƼǷǄǄǇǇǊǊAAIIOOUUUUUUUUUUƎAAAAÆÆǤGGKKOOOOƷƷJǱǱGGNNAAÆÆØØAA"
    "AAEEEEIIIIOOOORRRRUUUUSSTTȜHHȢȤAAEEOOOOOOOOYYƁƆƉƊƏƐƓƔƗƖƜƝƟƦƩƮƱƲƷΙΑΕΗΙΟΥΩΙΙΥΑΕΗΙΥΑΒΓΔ"
    "ΕΖΗΘΙΚΛΜΝΞΟΠΡΣΣΤΥΦΧΨΩΙΥΟΥΩΒΘϒϒΦΠϚϜϞϠϢϤϦϨϪϬϮΚΡΣЕЕГІКИУАБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮ"
    "ЯЕЕЂГЄЅІІЈЉЊЋКИУЏѠѢѤѦѨѪѬѮѰѲѴѴѴѸѺѼѾҀҌҎҐҒҔҖҘҚҜҞҠҢҤҦҨҪҬҮҰҲҴҶҸҺҼҾЖЖӃӇӋААААӔЕЕӘӘӘЖЖЗЗӠИИИ"
    "ИООӨӨӨЭЭУУУУУУЧЧЫЫԱԲԳԴԵԶԷԸԹԺԻԼԽԾԿՀՁՂՃՄՅՆՇՈՉՊՋՌՍՎՏՐՑՒՓՔՕՖAABBBBBBCCDDDDDDDDDDEEEEEEEE"
    "EEFFGGHHHHHHHHHHIIIIKKKKKKLLLLLLLLMMMMMMNNNNNNNNOOOOOOOOPPPPRRRRRRRRSSSSSSSSSSTTTTTT"
    "TTUUUUUUUUUUVVVVWWWWWWWWWWXXXXYYZZZZZZHTWYSAAAAAAAAAAAAAAAAAAAAAAAAEEEEEEEEEEEEEEEEI"
    "IIIOOOOOOOOOOOOOOOOOOOOOOOOUUUUUUUUUUUUUUYYYYYYYYΑΑΑΑΑΑΑΑΑΑΑΑΑΑΑΑΕΕΕΕΕΕΕΕΕΕΕΕΗΗΗΗΗΗΗ"
    "ΗΗΗΗΗΗΗΗΗΙΙΙΙΙΙΙΙΙΙΙΙΙΙΙΙΟΟΟΟΟΟΟΟΟΟΟΟΥΥΥΥΥΥΥΥΥΥΥΥΩΩΩΩΩΩΩΩΩΩΩΩΩΩΩΩΑΆΕΈΗΉΙΊΟΌΥΎΩΏΑΑΑΑΑ"
    "ΑΑΑΑΑΑΑΑΑΑΑΗΗΗΗΗΗΗΗΗΗΗΗΗΗΗΗΩΩΩΩΩΩΩΩΩΩΩΩΩΩΩΩΑΑΑΑΑΑΑΑΑΑΑΙΗΗΗΗΗΕΗΗΙΙΙΙΙΙΙΙΥΥΥΡΡΥΥΥΥΥΡΩΩ"
    "ΩΩΩΟΩΩⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩⅪⅫⅬⅭⅮⅯⒶⒷⒸⒹⒺⒻⒼⒽⒾⒿⓀⓁⓂⓃⓄⓅⓆⓇⓈⓉⓊⓋⓌⓍⓎⓏ\uff21\uff22\uff23\uff24\uff25\uff26"
    "\uff27\uff28\uff29\uff2a\uff2b\uff2c\uff2d\uff2e\uff2f\uff30\uff31\uff32\uff33\uff34"
    "\uff35\uff36\uff37\uff38\uff39\uff3a"
)
_WEIGHTS = str.maketrans(string.ascii_lowercase + _FROM, string.ascii_uppercase + _TO)
_SUPPLEMENTARY = re.compile("[\U00010000-\U0010ffff]")


def weigh(text: str) -> str:
    """Return a text that compares by code points as `text` compares by the collation."""
    if text.isascii():
        return text.upper()
    return _SUPPLEMENTARY.sub("\ufffd", text.translate(_WEIGHTS))
